"""Reads JSON files of models, with clear errors, and replaces files."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FileNotFoundError: if there is no such file.
        ParallaxError: if it is not a JSON object in UTF-8.
    """
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        message = f"{path} is not valid JSON: {error}"
        raise ParallaxError(message, "the file is damaged: download or copy it again") from error
    if not isinstance(value, dict):
        message = f"{path} holds a JSON {type(value).__name__} instead of an object"
        raise ParallaxError(message, "the file is damaged: download or copy it again")
    return value


def replace_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all: other processes may read or write it at the same time.

    Raises:
        OSError: if it cannot be written; a file that was there before stays.
    """
    draft = path.with_suffix(f".{os.getpid()}.part")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
