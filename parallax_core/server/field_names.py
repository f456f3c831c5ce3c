"""The API's names of the fields that an engine refuses."""

from __future__ import annotations

from parallax_core.base.errors import InvalidRequest
from parallax_core.server.body_messages import ResponseForm


def name_api_field(error: InvalidRequest, form: ResponseForm | None) -> InvalidRequest:
    """Return ``error``, which names a field of `Request` or `Sampling`, with the name of that field in the body.

    ``form``: of the answers to the body; None: it is not known.
    """
    if form is None:
        return error
    names = {
        "prompt": form.prompt_field,
        "max_tokens": form.length_field,
        "adapter": "model",
        "stop_ids": "stop_token_ids",
        "salt": "cache_salt",
        "grammar": form.grammar_field,
        "pooling": "model",
    }
    param = names.get(error.param, error.param) if error.param else None
    return InvalidRequest(error.message, param, error.hint)
