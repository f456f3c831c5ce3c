"""Keeps the key that signs what this machine announces."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock
from nacl.signing import SigningKey

from parallax_core.api import ParallaxError

LOCK_S = 5.0


def ensure_signing_key(path: Path) -> SigningKey:
    """Return the key in a file, which is made if it does not exist, with access for the owner only.

    Raises:
        ParallaxError: if it cannot be read, written or is damaged.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=LOCK_S):
            if not path.exists():
                draft = path.with_suffix(f".{os.getpid()}")
                draft.touch(mode=0o600)
                draft.write_text(bytes(SigningKey.generate()).hex(), "ascii")
                draft.replace(path)
            return SigningKey(bytes.fromhex(path.read_text("ascii")))
    except (OSError, ValueError) as error:  # a timeout of the lock is an OSError
        message = f"the key in {path} cannot be used: {error}"
        raise ParallaxError(message, "if it is damaged, remove it: another one is made") from error
