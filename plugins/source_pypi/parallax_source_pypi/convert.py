"""Convert a GGUF file into a standard model folder."""

from __future__ import annotations

import json
from pathlib import Path

from parallax_core.api import Progress
from parallax_source_pypi.configs import Json, chat_template, generation_config, model_config, tokenizer_config
from parallax_source_pypi.fields import Fields
from parallax_source_pypi.reader import GgufFile, open_gguf
from parallax_source_pypi.shape import LlamaShape, read_shape
from parallax_source_pypi.shards import SHARD_BYTES, ShardWriter
from parallax_source_pypi.tokenizer import build_tokenizer, read_specials
from parallax_source_pypi.weights import load_floats, match_slots


def convert_gguf(source: Path, folder: Path, progress: Progress, task: str, limit: int = SHARD_BYTES) -> None:
    """Write the model in the GGUF file ``source`` to ``folder``, which must exist and be empty.

    Memory: about ``limit`` bytes, or those of the largest tensor, whichever is more. ``task`` is what progress is
    reported as, in tensors.

    Raises:
        Unsupported: if the model is not one that can be converted faithfully.
        ParallaxError: if the file is damaged.
    """
    with open_gguf(source) as gguf:
        fields = Fields(gguf.metadata)
        shape = read_shape(fields, tied="output.weight" not in gguf.tensors)
        # The tokenizer comes first: what can be refused should be before the long part.
        build_tokenizer(fields).save(str(folder / "tokenizer.json"))
        writer = ShardWriter(folder, limit)
        write_weights(gguf, shape, writer, progress, task)
        write_configs(fields, shape, writer.dtype, folder)


def write_weights(gguf: GgufFile, shape: LlamaShape, writer: ShardWriter, progress: Progress, task: str) -> None:
    """Write the tensors of the model."""
    slots = match_slots(shape, gguf.tensors)
    for done, slot in enumerate(slots):
        progress(task, done, len(slots), "items")
        writer.add_tensor(slot.target, load_floats(gguf, slot))
    writer.close()
    progress(task, len(slots), len(slots), "items")


def write_configs(fields: Fields, shape: LlamaShape, dtype: str, folder: Path) -> None:
    """Write everything but the weights and tokenizer.json."""
    specials = read_specials(fields)
    write_json(folder / "config.json", model_config(shape, specials, dtype))
    write_json(folder / "generation_config.json", generation_config(specials))
    write_json(folder / "tokenizer_config.json", tokenizer_config(fields, shape, specials))
    template = chat_template(fields)
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")


def write_json(path: Path, content: Json) -> None:
    """Write a JSON file, without keys whose value is None."""
    present = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(present, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
