"""Makes a model folder from a GGUF file that is fetched in parts, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallax_formats.gguf import Fields, GgufFile, damaged, open_gguf
from parallax_source_pypi.configs import model_config
from parallax_source_pypi.convert import write_json, write_texts
from parallax_source_pypi.settings import Settings, read_settings
from parallax_source_pypi.shards import lay_out
from parallax_source_pypi.tensors import READ_BEFORE, Source, match_slots
from parallax_source_pypi.tokenizer import read_specials
from parallax_source_pypi.treatments import Converted, convert_slot

MOST_SETTING_BYTES = 2**20
"""The most bytes of a tensor that becomes a setting; it has one number for each pair of a head."""
Place = tuple[int, int, int]
"""Bytes of a model's files: the number of the file, from 0, the first byte and the one after the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of ``model.safetensors``."""

    tensor: Converted
    start: int
    """Where it begins in the file."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.tensor.name

    @property
    def stop(self) -> int:
        """Where it ends in the file."""
        return self.start + self.tensor.num_bytes

    @property
    def places(self) -> list[Place]:
        """The bytes that it is made of."""
        return [(each.number, each.start, each.start + each.num_bytes) for each in self.tensor.sources]

    def make(self) -> memoryview:
        """Return its bytes; those of `places` must be here.

        Raises:
            ParallaxError: if a value is infinite or not a number.
            Unsupported: if the gguf package does not read the type.
        """
        return np.ascontiguousarray(self.tensor.make()).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class Pieces:
    """A model: its weights as the file ``model.safetensors`` that they become, with blocks as they are."""

    header: bytes
    pieces: Sequence[Piece]
    fields: Fields
    settings: Settings

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return max((piece.stop for piece in self.pieces), default=len(self.header))

    def write_texts(self, folder: Path) -> None:
        """Write all files of the model but its weights."""
        write_texts(self.fields, self.settings, folder, {})
        tensors = [piece.tensor for piece in self.pieces]
        dtype = "float32" if any(each.dtype == "F32" for each in tensors) else "float16"
        types = {each.name: each.kind for each in tensors if each.kind}
        config = model_config(self.settings, read_specials(self.fields), dtype, types)
        write_json(folder / "config.json", config)


def list_settings(file: GgufFile) -> list[Place]:
    """Return the bytes of tensors that `open_pieces` reads: those that become settings.

    Raises:
        ParallaxError: if they have more than `MOST_SETTING_BYTES`.
    """
    tensors = [file.tensors[name] for name in sorted(READ_BEFORE & file.tensors.keys())]
    if large := next((each.name for each in tensors if each.num_bytes > MOST_SETTING_BYTES), None):
        raise damaged(f"the tensor {large!r} has more than {MOST_SETTING_BYTES} bytes")
    return [(each.number, each.start, each.start + each.num_bytes) for each in tensors]


@contextmanager
def open_pieces(path: Path) -> Iterator[Pieces]:
    """Open the GGUF file at ``path``, of which the headers and `list_settings` must be here.

    Raises:
        Unsupported: if the model cannot be converted exactly.
        ParallaxError: if the file is damaged.
    """
    with open_gguf(path) as file:
        fields = Fields(file.metadata)
        settings = read_settings(fields, file)
        source = Source(file, settings.architecture, settings.sizes, keeps_blocks=True)
        tensors = [tensor for slot in match_slots(source) for tensor in convert_slot(slot, source)]
        header, starts = lay_out((each.name, each.dtype, each.shape, each.num_bytes) for each in tensors)
        yield Pieces(header, [Piece(each, starts[each.name]) for each in tensors], fields, settings)
