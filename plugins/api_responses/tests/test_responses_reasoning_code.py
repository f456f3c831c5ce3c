from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_api_responses.reasoning_code import MARK, decode_text, encode_text
from parallax_core.base.errors import InvalidRequest


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_text_comes_back(text: str) -> None:
    assert decode_text(encode_text(text), "input.0") == text


@given(st.text().filter(lambda text: not text.startswith(MARK)) | st.text("é=*", min_size=1).map(MARK.__add__))
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_text(text, "input.0")
    assert refused.value.param == "input.0"


def test_content_of_another_server_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="was not made by this server"):
        decode_text("gAAAAABo", "input.0.encrypted_content")
