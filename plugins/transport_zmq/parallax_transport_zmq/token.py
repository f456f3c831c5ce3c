"""Join tokens: the secret half of a key, as one line to copy to another machine.

``parallax-join-`` and 72 hexadecimal digits: 32 bytes of the secret, and the first 4 of the SHA-256 of the prefix and
the secret, so that a token with a lost or changed digit is not taken for another key.
"""

from __future__ import annotations

import hashlib

from parallax_core.api import ParallaxError
from parallax_transport_zmq.keyfile import KEY_BYTES

PREFIX = "parallax-join-"
CHECK_BYTES = 4


def make_token(secret: bytes) -> str:
    """Return the token that holds ``secret``."""
    return f"{PREFIX}{(secret + _digest(secret)).hex()}"


def read_token(text: str) -> bytes:
    """Return the secret in a token.

    Raises:
        ParallaxError: if it is not a token, or is damaged; the message does not repeat it.
    """
    digits = text.strip()
    if not digits.startswith(PREFIX):
        raise ParallaxError("this is not a join token", f"it begins with {PREFIX}; `parallax keys token` prints one")
    try:
        found = bytes.fromhex(digits.removeprefix(PREFIX))
    except ValueError:
        found = b""
    secret, check = found[:KEY_BYTES], found[KEY_BYTES:]
    if len(found) != KEY_BYTES + CHECK_BYTES or check != _digest(secret):
        raise ParallaxError("the join token is damaged", "copy it again, with all its digits")
    return secret


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(PREFIX.encode() + secret).digest()[:CHECK_BYTES]
