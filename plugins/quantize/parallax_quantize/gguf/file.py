"""Writes a model folder as one GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from parallax_core.api import ParallaxError, Progress, Unsupported, read_config, read_tensors, silent
from parallax_core.api.source import TensorLocation, find_locations, find_missing
from parallax_formats import name_method
from parallax_quantize.experts import ExpertTensor, find_experts
from parallax_quantize.gguf.kquants import KINDS as K_QUANTS
from parallax_quantize.gguf.kquants import quantize
from parallax_quantize.gguf.mix import MIXES, Mix, choose_type
from parallax_quantize.gguf.settings import HINT, Kind, add_settings, find_kind, make_tables, turn
from parallax_quantize.gguf.tokenizer import add_tokenizer
from parallax_sampling_torch.tensors import read_tensor

FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ROWS = 1024
"""Rows that are quantised at once, which bounds the memory."""
QUANTIZATION_VERSION = 2
Bytes = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model that can be written as GGUF.

    Args:
        folder: of the model.
        mix: the types of its tensors.
    """

    folder: Path
    mix: Mix
    config: Mapping[str, Any]
    kind: Kind
    types: Mapping[str, str]
    """The type of each tensor, by its name in the file."""
    sources: Mapping[str, TensorLocation | ExpertTensor]
    """By the same names."""

    @property
    def num_bytes(self) -> int:
        """The bytes of its tensors in the file."""
        return sum(count_bytes(self.sources[name].shape, kind) for name, kind in self.types.items())

    def write(self, path: Path, name: str, progress: Progress) -> None:
        """Write the file; ``name`` is what it calls the model."""
        writer = gguf.GGUFWriter(path, self.kind.name)
        try:
            writer.add_name(name)
            writer.add_file_type(self.mix.number)
            writer.add_quantization_version(QUANTIZATION_VERSION)
            add_settings(writer, self.kind, self.config)
            add_tokenizer(writer, self.folder, self.config["vocab_size"], self.config)
            tables = {table: values.numpy() for table, values in make_tables(self.config)}
            for table, values in tables.items():
                writer.add_tensor_info(table, values.shape, values.dtype, values.nbytes)
            for tensor, kind in self.types.items():
                shape = self.sources[tensor].shape
                number = gguf.GGMLQuantizationType[kind]
                writer.add_tensor_info(tensor, shape, np.dtype(np.float32), count_bytes(shape, kind), number)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in tables.values():
                writer.write_tensor_data(values)
            for done, data in enumerate(self._make_all(), 1):  # one at a time in memory
                writer.write_tensor_data(data)
                progress("quantise", done, len(self.types), "items")
        finally:
            writer.close()

    def _make_all(self) -> Iterator[Bytes]:
        for name, kind in self.types.items():
            source = self.sources[name]
            names = source.names if isinstance(source, ExpertTensor) else (source.name,)
            found = {each: read_tensor(made) for each, made in read_tensors(self.folder, names.__contains__, silent)}
            if isinstance(source, ExpertTensor):
                made = source.make(found)
                yield encode(made.flatten(0, -2), kind).reshape(*made.shape[:-1], -1)
            else:
                yield encode(turn(self.kind, source.name, found[source.name], self.config), kind)


def open_model(folder: Path, form: str) -> GgufModel:
    """Return a model folder as it can be written.

    Raises:
        Unsupported: if its family is not written as GGUF, or it is quantised already.
        ParallaxError: if a part of it is not here.
    """
    config = read_config(folder)
    if method := name_method(config):
        raise Unsupported(f"{folder.name} is quantised already: {method}", "quantise the model in full precision")
    if find_missing(folder):
        raise ParallaxError(f"a part of {folder.name} is not on this machine", "fetch it with `parallax models pull`")
    kind = find_kind(config)
    found = [each for path in sorted(folder.glob("*.safetensors")) for each in find_locations(path)]
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind.name)
    names = gguf.get_tensor_name_map(arch, layers := int(config["num_hidden_layers"]))
    experts = find_experts(config["model_type"], {each.name: each for each in found})
    of_experts = {name for each in experts for name in each.names}
    listed: list[tuple[str, TensorLocation | ExpertTensor]] = [(name_experts(each), each) for each in experts]
    listed += [(rename(names, each), each) for each in found if each.name not in of_experts]
    sources = dict(sorted(listed, key=_order))
    is_tied = "output.weight" not in sources
    types = {
        name: choose_type(MIXES[form], name, each.shape, layers, is_tied=is_tied) for name, each in sources.items()
    }
    return GgufModel(folder, MIXES[form], config, kind, types, sources)


def rename(names: gguf.TensorNameMap, source: TensorLocation) -> str:
    """Return the name of a tensor in the file.

    Raises:
        Unsupported: if it has none there.
    """
    stem, _, last = source.name.rpartition(".")
    found = names.get_name(stem)
    if found is None and (bare := names.get_name(source.name)) is not None:  # a tensor that is a parameter of its own
        found, last = bare, "weight"
    if found is None or last not in ("weight", "bias") or source.kind not in FLOAT_TYPES:
        raise Unsupported(f"the tensor {source.name} is not written as GGUF", HINT)
    return f"{found}.{last}"


def name_experts(experts: ExpertTensor) -> str:
    """Return the name of a matrix, or a bias, of all experts of a layer in the file."""
    layer = experts.module.removeprefix("model.layers.").partition(".")[0]
    return f"blk.{layer}.ffn_{experts.word}_exps.{'bias' if experts.is_bias else 'weight'}"


def count_bytes(shape: tuple[int, ...], kind: str) -> int:
    """Return the bytes of a tensor in a type."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return int(np.prod(shape)) // weights * size


def encode(tensor: torch.Tensor, kind: str) -> Bytes:
    """Return a tensor in a type."""
    if kind in FLOAT_TYPES:
        made = tensor.to(FLOAT_TYPES[kind]).contiguous()
        return to_numpy(made.view(torch.uint8) if kind == "BF16" else made)
    return np.concatenate([_encode_rows(rows.float(), kind) for rows in tensor.split(ROWS)])


def _encode_rows(rows: torch.Tensor, kind: str) -> Bytes:
    if kind in K_QUANTS:
        return to_numpy(quantize(kind, rows))
    made: Bytes = gguf.quants.quantize(rows.contiguous().numpy(), gguf.GGMLQuantizationType[kind])
    return made


def to_numpy(tensor: torch.Tensor) -> Bytes:
    """Return a tensor as an array."""
    made: Bytes = tensor.numpy()
    return made


def _order(entry: tuple[str, TensorLocation | ExpertTensor]) -> list[tuple[bool, int, str]]:
    return [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in entry[0].split(".")]
