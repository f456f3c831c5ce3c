"""Converts the tokenizer of a model without ``tokenizer.json``, once for each version of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError
from parallax_core.base.faults import ENDINGS
from parallax_core.base.files import read_object, replace_file
from parallax_core.checkpoint.folder_layout import TOKENIZER
from parallax_core.checkpoint.tokenizer_converters import FoundConverter, find_converter, hint_at_converters
from parallax_core.config.home import cache_folder


def find_tokenizer_file(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Return the path of a model's ``tokenizer.json``: its own, or one in the cache folder that is converted.

    Args:
        folder: of the model.
        settings: see `read_tokenizer_settings`.

    Raises:
        ParallaxError: if it has neither, or its files cannot be converted.
    """
    if (folder / TOKENIZER).is_file():
        return folder / TOKENIZER
    found = find_converter([path.name for path in folder.iterdir()])
    if found is None:
        raise ParallaxError(f"{folder} has no {TOKENIZER}", hint_at_converters() or "fetch the model again")
    settings = _complete(folder, settings)
    try:
        path = cache_folder("tokenizers") / f"{_identify(folder, found, settings)}.json"
        if not path.is_file():
            replace_file(path, convert_tokenizer(folder / found.file, found, settings).encode())
    except OSError as error:
        message = f"the tokenizer of {folder} cannot be converted: {error}"
        raise ParallaxError(message, "make the file readable and the cache folder writable") from error
    return path


def convert_tokenizer(file: Path, found: FoundConverter, settings: Mapping[str, Any]) -> str:
    """Return the converted contents of a file.

    Raises:
        OSError: if it cannot be read.
        ParallaxError: if it cannot be converted.
    """
    try:
        return found.converter.convert(file, settings)
    except (ParallaxError, OSError, *ENDINGS):
        raise
    except BaseException as error:  # tokenizers raises bare Exception for what it does not accept, or panics
        message = f"{file} cannot be converted: {error}"
        raise ParallaxError(message, "fetch the model again, or use one with a tokenizer.json") from error


def _complete(folder: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings with the added tokens of older models, which are in a file of their own."""
    path = folder / "added_tokens.json"
    if "added_tokens_decoder" in settings or not path.is_file():
        return settings
    listed = {str(number): {"content": text} for text, number in read_object(path).items()}
    return {**settings, "added_tokens_decoder": listed}


def _identify(folder: Path, found: FoundConverter, settings: Mapping[str, Any]) -> str:
    """Return a name for all that the result depends on."""
    digest = hashlib.sha256()
    with (folder / found.file).open("rb") as source:
        while block := source.read(2**20):
            digest.update(block)
    origin = [found.name, found.converter.revision, found.file, settings]
    digest.update(json.dumps(origin, sort_keys=True).encode())
    return digest.hexdigest()
