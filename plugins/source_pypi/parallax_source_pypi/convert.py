"""Converts a GGUF file into a standard model folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parallax_core.api import Progress
from parallax_formats.gguf import Fields, open_gguf
from parallax_source_pypi.configs import Json, chat_template, generation_config, model_config, tokenizer_config
from parallax_source_pypi.settings import Settings, read_settings
from parallax_source_pypi.shards import SHARD_BYTES, ShardWriter
from parallax_source_pypi.store import check_space
from parallax_source_pypi.tensors import Source, match_slots
from parallax_source_pypi.tokenizer import build_tokenizer, read_specials
from parallax_source_pypi.treatments import convert_slot


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of a conversion: the size of files, the form of weights, the recommended sampling."""

    limit: int = SHARD_BYTES
    """The most bytes of a file."""
    keeps_blocks: bool = False
    """Whether packed values stay packed, as in `parallax_formats.gguf`; otherwise they become float16."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling that the model's authors recommend and the file lacks, by the names of generation_config.json."""


def check_gguf(source: Path) -> None:
    """Raise the error with which `convert_gguf` refuses a file before it reads any weights, if it does."""
    with open_gguf(source) as gguf:
        fields = Fields(gguf.metadata)
        settings = read_settings(fields, gguf)
        read_specials(fields)
        build_tokenizer(fields)
        match_slots(Source(gguf, settings.architecture, settings.sizes, keeps_blocks=True))


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
        settings = read_settings(fields, gguf)
        # The tokenizer comes first, so that an unsupported model is refused before the long part.
        write_texts(fields, settings, folder, options.sampling)
        writer = ShardWriter(folder, options.limit)
        write_weights(Source(gguf, settings.architecture, settings.sizes, options.keeps_blocks), writer, report)
        config = model_config(settings, read_specials(fields), writer.dtype, writer.types)
        write_json(folder / "config.json", config)


def write_texts(fields: Fields, settings: Settings, folder: Path, sampling: Mapping[str, float]) -> None:
    """Write the tokenizer, its settings, and the recommended sampling."""
    specials = read_specials(fields)
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    write_json(folder / "generation_config.json", {**sampling, **generation_config(fields, specials)})
    write_json(folder / "tokenizer_config.json", tokenizer_config(fields, settings, specials))
    write_template(folder / "chat_template.jinja", chat_template(fields))


def write_weights(source: Source, writer: ShardWriter, report: Callable[[int, int], None]) -> None:
    """Write the tensors, and report progress."""
    slots = match_slots(source)
    floats = sum(math.prod(slot.info.shape) for slot in slots) * np.dtype(np.float16).itemsize
    check_space(writer.folder, sum(slot.info.num_bytes for slot in slots) if source.keeps_blocks else floats)
    for done, slot in enumerate(slots):
        report(done, len(slots))
        for tensor in convert_slot(slot, source):
            writer.add_tensor(tensor)
    writer.close()
    report(len(slots), len(slots))


def write_template(path: Path, template: str) -> None:
    """Write the chat template unchanged, if there is one."""
    if template:
        path.write_text(template, encoding="utf-8", newline="")


def write_json(path: Path, content: Json) -> None:
    """Write a JSON file, without keys whose value is None."""
    present = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(present, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
