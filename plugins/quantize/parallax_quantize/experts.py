"""Finds the experts of a model: a matrix of each, as tensors of their own or as one tensor of all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from parallax_core.api import Unsupported
from parallax_core.api.source import TensorLocation

Word = Literal["gate", "up", "down"]
WORDS: Mapping[str, Word] = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
"""What a matrix of an expert is, by its name."""
ONE = re.compile(r"(?P<module>.*\.experts)\.(?P<number>\d+)\.(?P<name>\w+)\.weight")
STACK = re.compile(r"(?P<module>.*\.experts)\.(?P<name>gate_up_proj|down_proj)(?P<bias>_bias)?")
TURNED = "gpt_oss"
"""The model whose stacks have the inputs of an expert before its outputs, gate and up in turn, and biases."""


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """One matrix, or bias, of all experts of a layer."""

    module: str
    """The name of the experts, such as ``model.layers.0.mlp.experts``."""
    word: Word
    names: tuple[str, ...]
    """The tensors that it is made of: one of each expert, or one of all."""
    shape: tuple[int, ...]
    """[experts, out, in], or of a bias [experts, out]."""
    rows: tuple[int | None, int | None, int] = (None, None, 1)
    """The outputs, of a tensor of all experts that has more: the first, the end, and the step."""
    is_turned: bool = False
    """Whether the tensor has the inputs before the outputs."""

    @property
    def is_bias(self) -> bool:
        """Whether it is a bias."""
        return len(self.shape) == 2  # noqa: PLR2004 -- [experts, out]

    def make(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return it, of the shape `shape`, made of the tensors with `names`."""
        if len(self.names) > 1:
            return torch.stack([tensors[name] for name in self.names])
        [whole] = (tensors[name] for name in self.names)
        whole = whole.transpose(1, 2) if self.is_turned else whole
        return whole[:, slice(*self.rows)].reshape(self.shape)


def find_experts(model_type: str, tensors: Mapping[str, TensorLocation]) -> list[ExpertTensor]:
    """Return the matrices and biases of experts, in the order of the names.

    Raises:
        Unsupported: if experts are stored in a form that is not known.
    """
    found = [*_find_single(tensors)]
    for name, location in tensors.items():
        if match := STACK.fullmatch(name):
            found += _part(match, location, is_turned=model_type == TURNED)
    known = {name for each in found for name in each.names}
    if other := next((name for name in tensors if ".experts." in name and name not in known), None):
        raise Unsupported(f"{other} is of experts in a form that is not quantised", "choose another model")
    return found


def _find_single(tensors: Mapping[str, TensorLocation]) -> Iterator[ExpertTensor]:
    """Yield the matrices of experts that are stored one by one."""
    groups: dict[tuple[str, Word], dict[int, str]] = {}
    for name in tensors:
        if (match := ONE.fullmatch(name)) and match["name"] in WORDS:
            groups.setdefault((match["module"], WORDS[match["name"]]), {})[int(match["number"])] = name
    for (module, word), names in groups.items():
        ordered = [names[number] for number in sorted(names)]
        shapes = {tensors[name].shape for name in ordered}
        if sorted(names) != list(range(len(names))) or len(shapes) != 1:
            raise Unsupported(f"the experts of {module} are not all of one shape", "choose another model")
        yield ExpertTensor(module, word, tuple(ordered), (len(ordered), *shapes.pop()))


def _part(match: re.Match[str], location: TensorLocation, *, is_turned: bool) -> Iterator[ExpertTensor]:
    """Yield the matrices, or biases, in a tensor of all experts."""
    name, shape, is_bias = match[0], location.shape, bool(match["bias"])
    if len(shape) != (2 if is_bias else 3):
        raise Unsupported(f"{name} has the shape {list(shape)}, which is not one of experts", "choose another model")
    swaps = is_turned and not is_bias
    whole = (shape[0], *_turn(shape[1:])) if swaps else tuple(shape)
    if match["name"] == "down_proj":
        yield ExpertTensor(match["module"], "down", (name,), whole, is_turned=swaps)
        return
    half = whole[1] // 2
    cuts = ((0, None, 2), (1, None, 2)) if is_turned else ((0, half, 1), (half, None, 1))
    words: Sequence[Word] = ("gate", "up")
    for word, rows in zip(words, cuts, strict=True):
        yield ExpertTensor(match["module"], word, (name,), (whole[0], half, *whole[2:]), rows, swaps)


def _turn(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(shape))
