"""Files of clusters that this machine serves or has joined."""

from __future__ import annotations

from pathlib import Path

from parallax_core.api import state_folder


def cluster_file() -> Path:
    """Return the file of join codes; it may not exist yet."""
    return state_folder("cluster") / "codes.db"


def plan_file() -> Path:
    """Return the file of the last plans of this user's servers; it may not exist yet."""
    return cluster_file().with_name("plans.db")


def event_file() -> Path:
    """Return the file of the events of this user's servers; it may not exist yet."""
    return cluster_file().with_name("events.db")


def term_file() -> Path:
    """Return the file of the state of this machine's coordinator; it may not exist yet."""
    return cluster_file().with_name("coordinator")


def term_key_file() -> Path:
    """Return the file of the key by which a coordinator or standby of this machine signs; it may not exist yet."""
    return cluster_file().with_name("signing.key")


def standby_file() -> Path:
    """Return the file of what a standby on this machine has heard; it may not exist yet."""
    return cluster_file().with_name("standby")


def joined_folder() -> Path:
    """Return the folder of the records of the clusters that this machine has joined; it may not exist yet."""
    return state_folder("joined")


def known_terms_file() -> Path:
    """Return the file of the terms that nodes of this machine have heard of; it may not exist yet."""
    return joined_folder() / "terms"


def rendezvous_folder() -> Path:
    """Return the folder of the records of the rendezvous that have admitted this machine; it may not exist yet."""
    return joined_folder() / "rendezvous"


def signing_key_file() -> Path:
    """Return the file of the key that signs what this machine announces; it may not exist yet."""
    return joined_folder() / "signing.key"


def workers_folder() -> Path:
    """Return the folder of the records of running workers; it may not exist yet."""
    return state_folder("workers")
