"""Checks that a model folder has the files of the standard layout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from parallax_core.base.errors import ParallaxError
from parallax_core.base.files import read_object
from parallax_core.checkpoint.reader import read_index
from parallax_core.checkpoint.tokenizer_converters import find_converter, hint_at_converters

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SINGLE = "model.safetensors"
POOLING = "1_Pooling/config.json"
"""The pooling of a model for embeddings."""
TEMPLATES = "additional_chat_templates"
"""The folder of further chat templates, such as ``tool_use.jinja``."""
_NAME = re.compile(rf"(?!\.)[^/\\]+|{re.escape(POOLING)}|{TEMPLATES}/[^/\\]+\.jinja")


def is_in_layout(name: str) -> bool:
    """Return whether a model may have a file there: in the root of its folder, at `POOLING`, or in `TEMPLATES`."""
    return _NAME.fullmatch(name) is not None


def check_folder(folder: Path) -> None:
    """Check that ``folder`` holds a complete model in the standard layout.

    Raises:
        ParallaxError: naming all missing files, or the damaged one.
    """
    missing = [] if (folder / CONFIG).is_file() else [CONFIG]
    if find_tokenizer(path.name for path in folder.iterdir()) is None:
        missing.append(TOKENIZER)
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    elif not (folder / SINGLE).is_file():
        missing += [name for name in read_shards(folder) if not (folder / name).is_file()]
    if missing:
        message = f"{folder} is not a complete model: {', '.join(missing)} missing"
        hint = hint_at_converters() if missing == [TOKENIZER] else ""
        raise ParallaxError(message, hint or hint_for(path.name for path in folder.iterdir()))
    read_object(folder / CONFIG)


def find_tokenizer(names: Iterable[str]) -> str | None:
    """Return which of a model's files has its tokenizer: `TOKENIZER`, or one that can be converted; None: none."""
    listed = list(names)
    if TOKENIZER in listed:
        return TOKENIZER
    found = find_converter(listed)
    return found.file if found else None


def hint_for(names: Iterable[str]) -> str:
    """Return a hint for an incomplete model, given the file names it has."""
    endings = {Path(name).suffix for name in names}
    if ".safetensors" in endings:
        return "copy or download the missing files again"
    if ".gguf" in endings:
        return "write gguf:PATH to serve a GGUF file, or use the original model it was made from"
    if endings & {".bin", ".pt", ".pth", ".ckpt"}:
        return (
            "pickled weights can run code and are never loaded: use a safetensors version of the model, "
            "or save it again with save_pretrained of transformers, which writes safetensors"
        )
    return "a model is a folder with config.json, tokenizer.json and *.safetensors"


def read_shards(folder: Path) -> list[str]:
    """Return the names of the weight files in the index of ``folder``, sorted and unique.

    Raises:
        ParallaxError: if the index is damaged; see `read_index`.
    """
    return sorted(set(read_index(folder).values()))
