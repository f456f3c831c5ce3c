"""Turns chat requests of GradientHQ's Parallax into OpenAI's. Runs where bodies are read."""

from __future__ import annotations

import json
from typing import Any

from parallax_core.api import InvalidRequest

Json = dict[str, Any]

NAMES = ("extra_body", "sampling_params", "rid", "routing_table", "lora_path")
"""The fields that only that API has."""
SAMPLING = {
    "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
    "json_schema": "guided_json",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "stop_strs": "stop",
    "stop_token_ids": "stop_token_ids",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
"""The fields of ``sampling_params``, and their names in a chat request here."""
EMPTY: tuple[object, ...] = (None, "", [], {})
"""Values that ask for nothing."""


class _Twice(ValueError):
    """An object has a field twice."""


def rewrite_chat(data: bytes) -> bytes:
    """Return the body that the server reads, for one that may have the fields of GradientHQ's Parallax.

    What is no valid JSON object is returned as it is: the server says what is wrong.

    Raises:
        InvalidRequest: if one of these fields is not valid, or asks for what no server does here; it names the field.
    """
    if not any(f'"{name}"'.encode() in data for name in NAMES):
        return data
    try:
        body = json.loads(data, object_pairs_hook=_gather)
    except (ValueError, RecursionError):
        return data
    if not isinstance(body, dict):
        return data
    _lift(body, "extra_body", _take_object(body, "extra_body"))
    _lift(body, "sampling_params", _rename(_take_object(body, "sampling_params")))
    if not isinstance(body.pop("rid", None), str | None):
        raise InvalidRequest("'rid' must be a string", "rid")
    if body.pop("routing_table", None) not in EMPTY:
        raise InvalidRequest("'routing_table': the server chooses the machines itself: leave it out", "routing_table")
    _name_adapter(body)
    return json.dumps(body).encode()


def _name_adapter(body: Json) -> None:
    """Name the adapter of ``lora_path`` as the model: each has a name of its own here, which knows its base."""
    name = body.pop("lora_path", None)
    if name in EMPTY:
        return
    if not isinstance(name, str):
        raise InvalidRequest("'lora_path' must be the name of a loaded adapter", "lora_path")
    body["model"] = name


def _gather(pairs: list[tuple[str, Any]]) -> Json:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Twice
    return fields


def _take_object(body: Json, name: str) -> Json:
    """Remove an object from a body, and return it without the fields that ask for nothing."""
    found = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise InvalidRequest(f"'{name}' must be an object", name)
    return {field: value for field, value in (found or {}).items() if value not in EMPTY}


def _rename(sampling: Json) -> Json:
    """Return the fields of ``sampling_params`` by their names in a chat request."""
    for name in sampling:
        if name not in SAMPLING:
            raise InvalidRequest(f"unknown field 'sampling_params.{name}'", f"sampling_params.{name}")
    return {SAMPLING[name]: value for name, value in sampling.items()}


def _lift(body: Json, place: str, fields: Json) -> None:
    """Add fields of an inner object to a body."""
    for name, value in fields.items():
        if body.get(name) not in (None, value):
            message = f"'{name}' is sent in '{place}' and beside it, with different values: send one of them"
            raise InvalidRequest(message, name)
        body[name] = value
