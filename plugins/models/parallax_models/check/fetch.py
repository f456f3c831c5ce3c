"""Finds what is known of a model without its weights: config.json, index and headers."""

from __future__ import annotations

from pathlib import Path

from parallax_core.api import ParallaxError, Progress
from parallax_core.api.deployment import Catalog


def find_folder(catalog: Catalog, model: str, progress: Progress) -> Path:
    """Return a folder with the configuration of a model, and the headers of its weights if they can be fetched.

    Raises:
        ParallaxError: if there is no such model, or its source fetches whole models only.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if found := catalog.find(model):
        return found.path
    if not catalog.can_fetch_parts(model):
        hint = f"fetch it with `parallax models pull {model}`, and check it then"
        raise ParallaxError(f"{model!r} is not on this machine, and its source fetches whole models only", hint)
    return catalog.fetch_tensors(model, is_small, progress).path


def is_small(tensor: str) -> bool:
    """Return whether a tensor is a few kilobytes by its name; fetching it brings the header of its file."""
    return tensor.endswith("norm.weight")
