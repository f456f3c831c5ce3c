from __future__ import annotations

import pytest

from parallax_core.server.body_messages import BodyRequest, ParsedBody, RefusedBody
from parallax_core.server.body_reader import BodyReader
from tests.unit.server.dialects import BODIES
from tests.unit.server.letters import Letters


@pytest.mark.parametrize(("length", "most", "fits"), [(4, 5, True), (5, 5, False), (6, 5, False), (50, 0, True)])
def test_prompt_leaves_room_for_a_token_of_what_the_model_can_hold(length: int, most: int, *, fits: bool) -> None:
    body = b'{"model": "toy", "prompt": "%s"}' % (b"a" * length)
    reader = BodyReader(Letters(), "toy", BODIES)  # type: ignore[arg-type]
    found = reader.answer(BodyRequest(kind="completion", body=body, max_length=most)).content
    if fits:
        assert isinstance(found, ParsedBody)
    else:
        message = f"the prompt has {length} tokens; this model can hold {most} in all"
        assert found == RefusedBody(kind="invalid", message=message, param="prompt", hint="shorten it")
