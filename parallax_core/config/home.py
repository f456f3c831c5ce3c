"""Folders for models, keys and caches: in ``PARALLAX_HOME`` or the user's folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def models_folder() -> Path:
    """Return the folder of downloaded models; it may not exist yet."""
    return _folder("models", platformdirs.user_data_path("parallax") / "models")


def config_folder() -> Path:
    """Return the folder of the user's own ``parallax.toml``."""
    return _folder("config", platformdirs.user_config_path("parallax"))


def keys_folder() -> Path:
    """Return the folder of keys; the caller that writes there creates it, with access for the owner only."""
    return _folder("keys", platformdirs.user_data_path("parallax") / "keys")


def state_folder(name: str) -> Path:
    """Return a folder for what a machine remembers of ``name``; it may not exist yet."""
    return _folder(name, platformdirs.user_state_path("parallax") / name)


def told_file() -> Path:
    """Return the file of the sentences that a user of this machine has read once; it may not exist yet."""
    return state_folder("told") / "network"


def log_folder() -> Path:
    """Return the folder of the logs of commands that show something else on their terminal; it may not exist yet."""
    return state_folder("log")


def cache_folder(name: str) -> Path:
    """Return a folder for the cached files of ``name``, created with access for the owner only."""
    folder = _folder("cache", platformdirs.user_cache_path("parallax")) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _folder(name: str, default: Path) -> Path:
    home = os.environ.get("PARALLAX_HOME")
    return Path(home).expanduser() / name if home else default
