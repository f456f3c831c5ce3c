"""Who asks."""

from __future__ import annotations

import hashlib

from starlette.datastructures import Headers
from starlette.types import Scope


def read_key(scope: Scope) -> str:
    """Return the key of ``Authorization: Bearer KEY``, or an empty string."""
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def digest_key(key: str) -> bytes:
    """Return what a key is known by: nothing keeps the key itself."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def identify(scope: Scope, *, by_key: bool) -> bytes:
    """Return who asks: by key where keys are checked, else by address, since anybody can make up a key."""
    if by_key:
        return digest_key(read_key(scope))
    client = scope.get("client")
    return str(client[0] if client else "").encode()
