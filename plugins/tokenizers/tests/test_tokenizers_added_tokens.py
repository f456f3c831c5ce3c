from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from parallax_core.api import ParallaxError
from parallax_tokenizers.added_tokens import place_added, read_added

FILE = Path("tokenizer.model")


@pytest.mark.parametrize(
    "listed",
    [
        {"x": {"content": "a"}},
        {"1": {}},
        {"1": {"content": 3}},
        {"1": {"content": ""}},
        ["a"],
        {"-1": {"content": "a"}},
        {"99999999": {"content": "a"}},
    ],
)
def test_damaged_settings_are_refused(listed: Any) -> None:
    with pytest.raises(ParallaxError, match="'added_tokens_decoder' beside it"):
        read_added(FILE, {"added_tokens_decoder": listed})


def test_added_tokens_take_their_ids_and_gaps_are_filled() -> None:
    placed = place_added(["a", "b"], {1: AddedToken("c"), 2: AddedToken("a"), 4: AddedToken("d")}, "<{}>")
    assert placed == ["a", "c", "<2>", "<3>", "d"]
