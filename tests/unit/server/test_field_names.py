from __future__ import annotations

import pytest

from parallax_core.api import InvalidRequest
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.field_names import name_api_field

CHAT = ResponseForm(model="m", num_answers=1, length_field="max_completion_tokens", prompt_field="messages")
COMPLETION = ResponseForm(model="m", num_answers=1)


@pytest.mark.parametrize(
    ("param", "in_chat", "in_completion"),
    [
        ("prompt", "messages", "prompt"),
        ("max_tokens", "max_completion_tokens", "max_tokens"),
        ("adapter", "model", "model"),
        ("stop_ids", "stop_token_ids", "stop_token_ids"),
        ("min_tokens", "min_tokens", "min_tokens"),
        (None, None, None),
    ],
)
def test_field_of_an_engine_is_named_as_in_the_body(
    param: str | None, in_chat: str | None, in_completion: str | None
) -> None:
    error = InvalidRequest("words", param, "a hint")
    for form, expected in ((CHAT, in_chat), (COMPLETION, in_completion)):
        found = name_api_field(error, form)
        assert (found.message, found.param, found.hint) == ("words", expected, "a hint")
