"""The tensors of a model folder, as layers ask for them: mapped, read once each, and given back to the system."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.tensors import read_tensor
from parallax_backend_torch.workshop import Purpose, Workshop
from parallax_core.api import LayerRange, ParallaxError, Progress, Tensor, read_tensors, silent

NAME = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?((?:layers\.(\d+)|embed_tokens|norm|lm_head)\..*)")
"""A name within a checkpoint, the same for a text model alone and as a part of one that sees, and its layer."""
MISFIT = "the files may be incomplete, or of another model: fetch the model again"


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stage holds."""

    layers: LayerRange
    num_layers: int
    is_tied: bool
    """Whether the head is the embedding."""

    @property
    def has_embedding(self) -> bool:
        """Whether it needs the embedding, as such or as the head."""
        return self.layers.start == 0 or (self.is_tied and self.is_last)

    @property
    def is_last(self) -> bool:
        """Whether it ends with the last layer."""
        return self.layers.stop == self.num_layers

    def wants(self, name: str) -> bool:
        """Whether it holds the tensor of this name."""
        found = NAME.fullmatch(name)
        if found is None:
            return False
        if found[2]:
            return self.layers.start <= int(found[2]) < self.layers.stop
        if found[1].startswith("embed_tokens."):
            return self.has_embedding
        return self.is_last and not (self.is_tied and found[1].startswith("lm_head."))


class Shelf:
    """The tensors a stage holds, mapped into memory, and how many of them are loaded.

    Args:
        tensors: by name, as `NAME` shortens it.
        task: what loading is called.
        progress: told of the bytes that are read.
    """

    def __init__(self, tensors: Mapping[str, Tensor], task: str, progress: Progress) -> None:
        self.tensors = tensors
        self.left = set(tensors)
        """Those that nobody has asked for yet."""
        self.total = sum(memoryview(each.data).nbytes for each in tensors.values())
        self.done = 0
        self.kept = 0
        """Bytes that are kept of what was read, in the form they are kept in."""
        self._task, self._progress = task, progress

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored, on the CPU, over the memory of its file.

        Raises:
            ParallaxError: if there is none of this name.
        """
        if name not in self.tensors:
            raise ParallaxError(f"the checkpoint has no tensor {name}", MISFIT)
        self.left.discard(name)
        return read_tensor(self.tensors[name])

    def release(self, name: str) -> None:
        """Give the memory of a tensor back, which was read, and tell of it."""
        found = self.tensors[name]
        _give_back(found)
        self.tell(memoryview(found.data).nbytes)

    def tell(self, num_bytes: int) -> None:
        """Tell of so many more bytes."""
        self.done += num_bytes
        self._progress(self._task, min(self.done, self.total), self.total)

    def check_left(self, spare: Sequence[str] = ()) -> None:
        """Refuse a checkpoint with tensors that nobody asked for: it is of a model that is built otherwise.

        Args:
            spare: ends of names that do not matter.

        Raises:
            ParallaxError: naming one of them.
        """
        left = sorted(name for name in self.left if not name.endswith(tuple(spare)))
        if left:
            raise ParallaxError(f"nothing here uses the tensor {left[0]}, one of {len(left)}", MISFIT)


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a part of a model, and the workshop to make something of them."""

    shelf: Shelf
    workshop: Workshop
    prefix: str = ""

    def within(self, part: str) -> Weights:
        """Return those of a part, such as ``self_attn``."""
        return Weights(self.shelf, self.workshop, f"{self.prefix}{part}.")

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self.prefix + name in self.shelf.tensors

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that is there."""
        return self.shelf.tensors[self.prefix + name].shape

    def read_plain(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored, in memory of its own, on the CPU; see `Shelf.view`."""
        own = self.shelf.view(self.prefix + name).clone()
        self.shelf.release(self.prefix + name)
        return own

    def read_vector(self, name: str) -> torch.Tensor:
        """Return a small tensor in float32 on the device; see `Shelf.view`."""
        vector = self.workshop.make_vector(self.read_plain(name))
        self.shelf.kept += vector.nbytes
        return vector

    def make_linear(self, *names: str, purpose: Purpose = "layer") -> Packed:
        """Return the matrices ``NAME.weight`` as one, one below the other, with their biases if they have any."""
        bias, whole = self.read_bias(*names), [f"{self.prefix}{name}.weight" for name in names]
        if len(whole) == 1:
            made = self.keep_linear(self.shelf.view(whole[0]), bias, purpose)
            self.shelf.release(whole[0])
            return made
        weight = torch.cat([self.shelf.view(name) for name in whole])
        for name in whole:
            self.shelf.release(name)
        return self.keep_linear(weight, bias, purpose)

    def keep_linear(self, weight: torch.Tensor, bias: torch.Tensor | None, purpose: Purpose = "layer") -> Packed:
        """Return a matrix [out, in] that was read from here, ready to multiply by; a copy of it."""
        made = self.workshop.make_linear(weight, bias, purpose)
        self.shelf.kept += made.num_bytes
        return made

    def keep_stack(self, matrices: torch.Tensor) -> torch.Tensor:
        """Return matrices [number, in, out] that were read from here, in what activations are computed in."""
        made = matrices.to(self.workshop.device, self.workshop.dtype).contiguous()
        self.shelf.kept += made.nbytes
        return made

    def read_bias(self, *names: str) -> torch.Tensor | None:
        """Return the biases ``NAME.bias`` one after the other, or None if there are none."""
        if not any(self.has(f"{name}.bias") for name in names):
            return None
        return torch.cat([self.read_plain(f"{name}.bias").float() for name in names])


def open_shelf(folder: Path, selection: Selection, progress: Progress) -> Shelf:
    """Return the tensors of a stage; nothing but names is read.

    Raises:
        ParallaxError: if there are no weights, or a file is damaged.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_tensors(folder, selection.wants, silent):
        found = NAME.fullmatch(name)
        assert found, "it was wanted"
        tensors[found[1]] = tensor
    shelf = Shelf(tensors, f"load {folder.name}", progress)
    shelf.tell(0)
    return shelf


def _give_back(tensor: Tensor) -> None:
    """Tell the system that the pages of a file that was read are not needed in memory; never more than they hold."""
    whole = memoryview(tensor.data).obj
    if not isinstance(whole, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = read_tensor(Tensor("uint8", (len(whole),), memoryview(whole))).data_ptr()
    view = read_tensor(tensor)
    first = view.data_ptr() - base
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (first + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        whole.madvise(mmap.MADV_DONTNEED, start, length)
