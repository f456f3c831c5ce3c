"""The ``encrypted_content`` of reasoning: its text, encoded so that a client sends it back as it is."""

from __future__ import annotations

import base64

from parallax_core.api import InvalidRequest

MARK = "parallax1."
"""The beginning of every text encoded here."""


def encode_text(text: str) -> str:
    """Return a text as ``encrypted_content``; it is not secret: the client has the text as well."""
    return MARK + base64.urlsafe_b64encode(text.encode()).decode()


def decode_text(content: str, field: str) -> str:
    """Return the text of an ``encrypted_content``.

    Raises:
        InvalidRequest: if it was not made by `encode_text`; it names ``field``.
    """
    encoded = content.removeprefix(MARK)
    try:
        text = base64.b64decode(encoded, altchars=b"-_", validate=True).decode()
    except ValueError:
        text = ""
    if not text or encoded == content:
        message = f"'{field}' was not made by this server, which cannot read it"
        raise InvalidRequest(message, field, "leave that part of the input out")
    return text
