from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from parallax_api_responses.freeform_calls import FreeformCallParser
from parallax_core.api import ToolCall
from parallax_models.parsers.json_calls import HermesParser

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1)


@given(TEXT.filter(lambda text: text.strip() != ""), st.integers(1, 9))
def test_content_is_the_input_of_one_call(text: str, size: int) -> None:
    parser = FreeformCallParser(HermesParser(), "patch")
    pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
    pieces += parser.finish()
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert [call.name for call in calls if call.name] == ["patch"]
    assert text.endswith(json.loads("".join(call.arguments for call in calls))["input"])
    assert list(parser.finish()) == []


def test_answer_without_content_has_no_call() -> None:
    assert list(FreeformCallParser(HermesParser(), "patch").finish()) == []
