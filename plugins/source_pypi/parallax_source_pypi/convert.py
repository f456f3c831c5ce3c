"""Converts a GGUF file into a standard model folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from parallax_core.api import Progress
from parallax_formats.gguf import Fields, open_gguf
from parallax_source_pypi.blocks import is_kept, load_kept
from parallax_source_pypi.configs import (
    Json,
    chat_template,
    describe_blocks,
    generation_config,
    model_config,
    tokenizer_config,
)
from parallax_source_pypi.shape import read_shape
from parallax_source_pypi.shards import SHARD_BYTES, ShardWriter, Values
from parallax_source_pypi.store import check_space
from parallax_source_pypi.tokenizer import build_tokenizer, read_specials
from parallax_source_pypi.weights import TargetTensor, load_floats, match_slots


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of a conversion: the size of files, the form of weights, the recommended sampling."""

    limit: int = SHARD_BYTES
    """The most bytes of a file."""
    keeps_blocks: bool = False
    """Whether packed values stay packed, as in `blocks`; otherwise they become float16."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling that the model's authors recommend and the file lacks, by the names of generation_config.json."""


def check_gguf(source: Path) -> None:
    """Raise the error with which `convert_gguf` refuses a file before it reads any weights, if it does."""
    with open_gguf(source) as gguf:
        fields = Fields(gguf.metadata)
        shape = read_shape(fields, tied="output.weight" not in gguf.tensors)
        read_specials(fields)
        build_tokenizer(fields)
        match_slots(shape, gguf.tensors)


def convert_gguf(
    source: Path, folder: Path, progress: Progress, task: str, options: ConversionOptions | None = None
) -> None:
    """Write the model in the GGUF file ``source`` to ``folder``, which must exist and be empty.

    Memory: about ``options.limit`` bytes and twice the largest tensor. Progress is reported in tensors, under the name
    ``task``.

    Raises:
        Unsupported: if the model cannot be converted exactly.
        ParallaxError: if the file is damaged.
    """
    options = options or ConversionOptions()

    def report(done: int, total: int) -> None:
        progress(task, done, total, "items")

    with open_gguf(source) as gguf:
        fields = Fields(gguf.metadata)
        shape = read_shape(fields, tied="output.weight" not in gguf.tensors)
        # The tokenizer comes first, so that an unsupported model is refused before the long part.
        specials = read_specials(fields)
        build_tokenizer(fields).save(str(folder / "tokenizer.json"))
        write_json(folder / "generation_config.json", {**options.sampling, **generation_config(fields, specials)})
        write_json(folder / "tokenizer_config.json", tokenizer_config(fields, shape, specials))
        write_template(folder / "chat_template.jinja", chat_template(fields))
        slots = match_slots(shape, gguf.tensors)
        kept = [slot for slot in slots if options.keeps_blocks and is_kept(gguf.tensors[slot.source])]
        load = load_kept if options.keeps_blocks else load_floats
        dtype = write_weights(slots, partial(load, gguf), ShardWriter(folder, options.limit), report)
        types = {slot.target: gguf.tensors[slot.source].kind.name for slot in kept}
        write_json(folder / "config.json", model_config(shape, specials, dtype) | describe_blocks(types))


def write_weights(
    slots: list[TargetTensor],
    load: Callable[[TargetTensor], Values],
    writer: ShardWriter,
    report: Callable[[int, int], None],
) -> str:
    """Write the tensors, report progress, and return the dtype that holds all of them."""
    check_space(writer.folder, sum(math.prod(slot.shape) for slot in slots) * np.dtype(np.float16).itemsize)
    for done, slot in enumerate(slots):
        report(done, len(slots))
        writer.add_tensor(slot.target, load(slot))
    writer.close()
    report(len(slots), len(slots))
    return writer.dtype


def write_template(path: Path, template: str) -> None:
    """Write the chat template unchanged, if there is one."""
    if template:
        path.write_text(template, encoding="utf-8", newline="")


def write_json(path: Path, content: Json) -> None:
    """Write a JSON file, without keys whose value is None."""
    present = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(present, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
