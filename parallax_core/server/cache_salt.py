"""Keeps the clients of a server apart in the prefix caches of its engines."""

from __future__ import annotations

import secrets
from hashlib import blake2b

from starlette.types import Scope

from parallax_core.server.client_id import find_joined_machine, identify
from parallax_core.server.options import ServerOptions

SALT_BYTES = 16
"""The bytes of a derived salt, which engines get as hexadecimal digits."""


class CacheSalts:
    """Derives `Request.salt`, so that no client finds in a cache what another one has sent.

    With API keys, each key has a cache of its own, and without them each machine that has joined; the clients of this
    machine share one. A ``cache_salt`` divides the cache of its client further. With `ServerOptions.shares_cache`, all
    clients share one cache, which only a ``cache_salt`` divides.

    Nodes see salts, so that a salt must not help to guess a key: it is a digest under a secret of this process.
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        options = options or ServerOptions()
        self._by_key = options.keys.are_needed
        self._is_shared = options.shares_cache
        self._secret = secrets.token_bytes(32)

    def derive(self, scope: Scope, salt: str) -> str:
        """Return the salt of a request of the client of ``scope``, whose own ``cache_salt`` is ``salt``."""
        if self._is_shared or not (self._by_key or find_joined_machine(scope)):
            return salt
        client = blake2b(identify(scope, by_key=self._by_key), key=self._secret).digest()
        return blake2b(salt.encode(), key=client, digest_size=SALT_BYTES).hexdigest()
