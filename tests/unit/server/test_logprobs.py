from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from parallax_core.contracts.engine import TokenLogprob
from parallax_core.models.vocabulary import Vocabulary
from parallax_core.server.logprobs import LOWEST, TokenWriter, write_numbers
from tests.unit.tinymodel import write_model


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(write_model(tmp_path) / "tokenizer.json"))


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_entry_has_the_token_and_the_best_ones_in_openais_form(tokenizer: Tokenizer, num_top: int) -> None:
    first, *others = (tokenizer.token_to_id(each) or 0 for each in ('"', "b", "\u00c3", "\u0120"))
    top = tuple((token, -0.25 * number) for number, token in enumerate(others[:num_top], 1))
    writer = TokenWriter(Vocabulary(tokenizer))
    shown = [("b", [98]), ("bytes:\\xc3", [0xC3]), (" ", [32])]
    for _ in range(2):  # the second time from the cache
        assert json.loads(writer.write_entry(TokenLogprob(first, -math.inf, top))) == {
            "token": '"',
            "logprob": LOWEST,
            "bytes": [34],
            "top_logprobs": [
                {"token": text, "logprob": -0.25 * number, "bytes": data}
                for number, (text, data) in enumerate(shown[:num_top], 1)
            ],
        }


def test_numbers_that_json_lacks_are_the_lowest() -> None:
    assert write_numbers([-0.5, -math.inf, math.nan, 0.0, -1e5]) == [
        b"-0.5",
        *[to_bytes(LOWEST)] * 2,
        b"0.0",
        to_bytes(LOWEST),
    ]


def to_bytes(number: float) -> bytes:
    return str(number).encode()
