"""Join codes: one word of letters and digits that lets a machine join a cluster.

``plx1`` and a number in base 62: one byte of version, the length of the transport's name and the name, 16 bytes of
secret, the transport's description of the head, and the first 4 bytes of the SHA-256 of all that, so that a damaged
code is not taken for another. A short code has no description of the head, which is found on the local network.
"""

from __future__ import annotations

import hashlib
import secrets
import string
from dataclasses import dataclass, replace

from parallax_core.api import MOST_HEAD_BYTES, UsageError

PREFIX = "plx1"
VERSION = 1
SECRET_BYTES = 16
"""128 bits: too many to guess."""
CHECK_BYTES = 4
ALPHABET = string.digits + string.ascii_letters
DIGITS = {letter: value for value, letter in enumerate(ALPHABET)}
MOST_NAME_BYTES = 64
MOST_LETTERS = 1000
"""The most letters of a code; a longer word is not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinCode:
    """What a code contains."""

    transport: str
    secret: bytes
    """`SECRET_BYTES` random bytes."""
    head: bytes
    """The description of the head, by its transport; see `JoinMethod`. Empty in a short code."""

    def __repr__(self) -> str:
        return f"JoinCode({self.transport!r})"


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def is_code(text: str) -> bool:
    """Return whether a text is meant to be a code, and not an address."""
    return text.startswith(PREFIX) and "://" not in text


def write_code(code: JoinCode) -> str:
    """Return a code as a word.

    Raises:
        ValueError: if a part is too long.
    """
    name = code.transport.encode()
    if len(name) > MOST_NAME_BYTES or len(code.secret) != SECRET_BYTES or len(code.head) > MOST_HEAD_BYTES:
        raise ValueError("a part of the code has the wrong length")
    body = bytes([VERSION, len(name)]) + name + code.secret + code.head
    number = int.from_bytes(body + _digest(body))
    letters = []
    while number:
        number, digit = divmod(number, len(ALPHABET))
        letters.append(ALPHABET[digit])
    return PREFIX + "".join(reversed(letters))


def shorten_code(word: str) -> str:
    """Return the short code of a whole one: with its secret, and without the description of the head.

    Raises:
        UsageError: if it is no code; see `read_code`.
    """
    return write_code(replace(read_code(word), head=b""))


def read_code(text: str) -> JoinCode:
    """Return what a code contains.

    Raises:
        UsageError: if it is no code, is damaged, or is of another version; the message does not repeat it.
    """
    word = text.strip()
    if not is_code(word):
        raise UsageError("this is not a join code", f"it begins with {PREFIX}; `parallax cluster codes new` makes one")
    data = _decode(word.removeprefix(PREFIX))
    body, check = data[:-CHECK_BYTES], data[-CHECK_BYTES:]
    if len(body) < 2 + SECRET_BYTES or check != _digest(body):
        raise UsageError("the join code is damaged", "copy it again, with all its letters")
    version, size = body[0], body[1]
    if version != VERSION:
        message = f"the join code is of version {version}, and this Parallax reads version {VERSION}"
        raise UsageError(message, "install the same version of Parallax on every machine")
    name, rest = body[2 : 2 + size], body[2 + size :]
    secret, head = rest[:SECRET_BYTES], rest[SECRET_BYTES:]
    if size > MOST_NAME_BYTES or len(secret) != SECRET_BYTES or len(head) > MOST_HEAD_BYTES or not name.isascii():
        raise UsageError("the join code is damaged", "copy it again, with all its letters")
    return JoinCode(transport=name.decode(), secret=secret, head=head)


def _decode(letters: str) -> bytes:
    if len(letters) > MOST_LETTERS or any(letter not in DIGITS for letter in letters):
        return b""
    number = 0
    for letter in letters:
        number = number * len(ALPHABET) + DIGITS[letter]
    return number.to_bytes((number.bit_length() + 7) // 8)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(PREFIX.encode() + body).digest()[:CHECK_BYTES]
