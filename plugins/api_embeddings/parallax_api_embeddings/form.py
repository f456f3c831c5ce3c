"""The form of the embeddings that a client asks for: what the reader of a body tells the route."""

from __future__ import annotations

import msgspec


class EmbeddingForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the embeddings that a client asks for, in `ResponseForm.plan`."""

    is_base64: bool
    """Send the bytes of the numbers in base64, instead of a list."""
    dimensions: int | None
    """Send only this many leading numbers; None: all."""
    normalizes: bool
    """Whether the model's embeddings have the length 1."""

    def pack(self) -> bytes:
        """Return the plan."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, plan: bytes) -> EmbeddingForm:
        """Return the form of a plan."""
        return msgspec.msgpack.decode(plan, type=cls)
