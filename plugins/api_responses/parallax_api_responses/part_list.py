"""Finds the items of kept responses by their ids, which are made of the ids of their responses."""

from __future__ import annotations

import re

import msgspec

from parallax_api_responses.input_list import list_input
from parallax_api_responses.store import StoredResponse
from parallax_api_responses.writer import PREFIX
from parallax_core.api.bodies import JsonObject

ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{48})i?[0-9a-f]{4,}")
"""The id of an item of the output, or with an ``i`` of the input, of the response that the group names."""


class ResponseItems(msgspec.Struct):
    """The items that a response has made."""

    output: list[JsonObject]


def find_response(item_id: str) -> str | None:
    """Return the id of the response that has an item; None: this server gives no such ids."""
    found = ITEM_ID.fullmatch(item_id)
    return f"{PREFIX}{found[1]}" if found else None


def list_items(stored: StoredResponse) -> dict[str, JsonObject]:
    """Return the items of the input and the output of a response by their ids."""
    given = list_input(stored.id, msgspec.json.decode(stored.input))
    made = msgspec.json.decode(stored.body, type=ResponseItems).output
    return {str(item["id"]): item for item in (*given, *made)}
