"""Whether this process, and those that it starts, contact only the addresses that a user gave."""

from __future__ import annotations

import os

OFFLINE_VARIABLE = "PARALLAX_OFFLINE"
HUB_VARIABLE = "HF_HUB_OFFLINE"
"""Read by huggingface_hub, and so by the engines that use it."""


def is_offline() -> bool:
    """Return whether nothing may be fetched, looked for or asked beyond the addresses that a user gave."""
    return os.environ.get(OFFLINE_VARIABLE, "").lower() in {"1", "true", "yes", "on"}


def go_offline() -> None:
    """Restrict this process, and those that it starts from now on, to addresses given by the user."""
    os.environ[OFFLINE_VARIABLE] = os.environ[HUB_VARIABLE] = "1"
