"""Reads conversations that clients have a server keep."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from parallax_core.api.bodies import Strict, TextField, to_json
from parallax_core.api.dialect import read_body
from parallax_web.chat_store import ChatHeading, ChatStore


class ChatBody(Strict):
    """The body of ``PUT /v1/chats/{id}``."""

    title: Annotated[TextField, Field(max_length=500)]
    folder: Annotated[TextField, Field(max_length=500)] = ""
    updated: Annotated[float, Field(ge=0, le=2**53)]
    """When it was changed, in milliseconds since 1970."""
    base: Annotated[float, Field(ge=0, le=2**53)] | None = None
    """``updated`` of the version that it comes from: another one that is kept is not replaced. Null: of none."""
    content: dict[str, Any]
    """The conversation, as its client writes it."""


def write(store: ChatStore, owner: bytes, name: str, data: bytes) -> ChatHeading:
    """Keep the conversation of a body, and return its heading; takes a while, on any thread.

    Raises:
        InvalidRequest: if the body is not valid.
        ChangeRefused: see `ChatStore.write`.
    """
    body = read_body(data, ChatBody)
    heading = ChatHeading(name, body.title, body.folder, body.updated)
    store.write(owner, heading, body.base, to_json(body.content))
    return heading
