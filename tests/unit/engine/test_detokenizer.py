from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.engine.detokenizer import HALF, MAX_HALF_TOKENS, Detokenizer


def decode_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


@given(st.text(alphabet=st.characters(exclude_characters=HALF, exclude_categories=["Cs"])))
def test_pieces_join_to_the_text_and_none_has_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert not any(HALF in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == text


def test_text_that_ends_within_a_character_shows_it_as_replaced() -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(byte) for byte in "né".encode()[:-1]]
    assert "".join(pieces) == "n"
    assert detokenizer.finish() == HALF


def test_bytes_that_are_no_text_do_not_wait_for_ever() -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(0xFF) for _ in range(10 * MAX_HALF_TOKENS)]
    assert "".join(pieces) == HALF * 10 * MAX_HALF_TOKENS


def test_tokens_without_text_are_not_kept() -> None:
    sizes: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        sizes.append(len(tokens))
        return ""

    detokenizer = Detokenizer(decode)
    assert [detokenizer.feed(1) for _ in range(100)] == [""] * 100
    assert max(sizes) <= 2 * MAX_HALF_TOKENS


def test_a_decoder_that_drops_a_leading_space_keeps_spaces_between_words() -> None:
    words = [" one", " two", " three"]
    detokenizer = Detokenizer(lambda tokens: "".join(words[token] for token in tokens).removeprefix(" "))
    assert "".join(detokenizer.feed(token) for token in (0, 1, 2)) == "one two three"
