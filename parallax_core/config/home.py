"""Folders for models, engines, keys and caches: in ``PARALLAX_HOME`` or the user's folders."""

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


def engines_folder() -> Path:
    """Return the folder of the environments of engines; it may not exist yet."""
    return _folder("engines", platformdirs.user_data_path("parallax") / "engines")


def workers_folder() -> Path:
    """Return the folder of the records of running workers; it may not exist yet."""
    return _folder("workers", platformdirs.user_state_path("parallax") / "workers")


def cluster_file() -> Path:
    """Return the file of join codes; it may not exist yet."""
    return _folder("cluster", platformdirs.user_state_path("parallax") / "cluster") / "codes.db"


def plan_file() -> Path:
    """Return the file of the last plans of this user's servers; it may not exist yet."""
    return cluster_file().with_name("plans.db")


def term_file() -> Path:
    """Return the file of the state of this machine's coordinator; it may not exist yet."""
    return cluster_file().with_name("coordinator")


def term_key_file() -> Path:
    """Return the file of the key by which a coordinator or standby of this machine signs; it may not exist yet."""
    return cluster_file().with_name("signing.key")


def standby_file() -> Path:
    """Return the file of what a standby on this machine has heard; it may not exist yet."""
    return cluster_file().with_name("standby")


def known_terms_file() -> Path:
    """Return the file of the terms that nodes of this machine have heard of; it may not exist yet."""
    return joined_folder() / "terms"


def joined_folder() -> Path:
    """Return the folder of the records of the clusters that this machine has joined; it may not exist yet."""
    return _folder("joined", platformdirs.user_state_path("parallax") / "joined")


def rendezvous_folder() -> Path:
    """Return the folder of the records of the rendezvous that have admitted this machine; it may not exist yet."""
    return joined_folder() / "rendezvous"


def told_file() -> Path:
    """Return the file of the sentences that a user of this machine has read once; it may not exist yet."""
    return _folder("told", platformdirs.user_state_path("parallax") / "told") / "network"


def signing_key_file() -> Path:
    """Return the file of the key that signs what this machine announces; it may not exist yet."""
    return joined_folder() / "signing.key"


def log_folder() -> Path:
    """Return the folder of the logs of commands that show something else on their terminal; it may not exist yet."""
    return _folder("log", platformdirs.user_state_path("parallax") / "log")


def cache_folder(name: str) -> Path:
    """Return a folder for the cached files of ``name``, created with access for the owner only."""
    folder = _folder("cache", platformdirs.user_cache_path("parallax")) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _folder(name: str, default: Path) -> Path:
    home = os.environ.get("PARALLAX_HOME")
    return Path(home).expanduser() / name if home else default
