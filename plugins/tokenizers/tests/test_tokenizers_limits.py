from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.api import ParallaxError
from parallax_tokenizers.limits import MOST_FILE_BYTES, MOST_SPLITS, MOST_TOKEN_LENGTH, check_tokens, read_bounded


def test_large_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    with file.open("wb") as target:
        target.truncate(MOST_FILE_BYTES + 1)
    with pytest.raises(ParallaxError, match=f"more than {MOST_FILE_BYTES} bytes"):
        read_bounded(file)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no tokens"),
        (["a" * (MOST_TOKEN_LENGTH + 1)], "a token of length"),
        (["a" * MOST_TOKEN_LENGTH] * (MOST_SPLITS // MOST_TOKEN_LENGTH + 1), "have a length of"),
    ],
)
def test_tokens_are_bounded(tokens: list[str], message: str) -> None:
    with pytest.raises(ParallaxError, match=message):
        check_tokens(Path("tokenizer.model"), tokens)
