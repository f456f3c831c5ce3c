"""Marks of settings besides their types: whether a command lists the option, and its heading."""

from __future__ import annotations

from msgspec import Meta

ADVANCED = Meta(extra={"advanced": True})
"""Commands do not list it: the file, the environment and ``--set`` give it."""
STAGES = Meta(extra={"heading": "Backends, stages and machines"})
MODEL = Meta(extra={"heading": "The model"})
HTTP = Meta(extra={"heading": "HTTP"})
NETWORK = Meta(extra={"heading": "The network"})
