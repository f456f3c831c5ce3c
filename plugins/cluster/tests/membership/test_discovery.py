from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.membership.discovery import (
    QUESTION_BYTES,
    Question,
    derive_fingerprint,
    index_secrets,
    new_question,
    write_answer,
)
from parallax_core.contracts.discovery import MOST_ANSWER_BYTES, MOST_QUESTION_BYTES
from parallax_core.contracts.joining import MOST_HEAD_BYTES

SECRET, OTHER = b"proof of a code", b"proof of another code"
SECRETS = st.binary(min_size=16, max_size=64)
HEADS = st.binary(min_size=1, max_size=MOST_HEAD_BYTES)


@given(SECRETS, HEADS, st.lists(SECRETS))
def test_who_knows_the_secret_is_told_the_head(secret: bytes, head: bytes, others: list[bytes]) -> None:
    question = new_question(secret)
    answer = write_answer(question.data, index_secrets([*others, secret]), head)
    assert answer is not None
    assert question.read(answer) == head
    assert len(question.data) == QUESTION_BYTES <= MOST_QUESTION_BYTES
    assert len(answer) <= MOST_ANSWER_BYTES


@given(SECRETS, HEADS)
def test_nothing_that_is_sent_contains_the_secret(secret: bytes, head: bytes) -> None:
    question = new_question(secret)
    answer = write_answer(question.data, index_secrets([secret]), head) or b""
    assert secret not in question.data
    assert secret not in answer.removesuffix(head)
    assert repr(secret)[2:-1] not in repr(question)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_question_to_a_head(data: bytes) -> None:
    assert write_answer(data, index_secrets([SECRET]), b"head") is None


@given(st.binary(max_size=700))
def test_any_bytes_are_no_answer(data: bytes) -> None:
    assert new_question(SECRET).read(data) is None


@given(HEADS, st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_changed_answer_is_not_believed(head: bytes, place: int, change: int) -> None:
    question = new_question(SECRET)
    answer = bytearray(write_answer(question.data, index_secrets([SECRET]), head) or b"")
    answer[place % len(answer)] ^= change
    assert question.read(bytes(answer)) is None


def test_head_that_does_not_know_the_secret_says_nothing() -> None:
    assert write_answer(new_question(SECRET).data, index_secrets([OTHER]), b"head") is None


def test_answer_of_who_knows_another_secret_is_not_believed() -> None:
    question = new_question(SECRET)
    forged = write_answer(question.data, {derive_fingerprint(SECRET): OTHER}, b"head")
    assert forged is not None
    assert question.read(forged) is None


def test_answer_to_an_earlier_question_is_not_believed() -> None:
    earlier, later = new_question(SECRET), new_question(SECRET)
    answer = write_answer(earlier.data, index_secrets([SECRET]), b"head")
    assert answer is not None
    assert earlier.read(answer) == b"head"
    assert later.read(answer) is None


def test_description_that_is_too_long_is_not_read() -> None:
    question = new_question(SECRET)
    answer = write_answer(question.data, index_secrets([SECRET]), bytes(MOST_HEAD_BYTES + 1))
    assert answer is not None
    assert question.read(answer) is None


def test_questions_and_answers_are_those_of_other_versions() -> None:
    question = Question(SECRET, bytes(range(16)))
    answer = write_answer(question.data, index_secrets([SECRET]), b"head")
    assert question.data.hex() == "0161544e36733534dbefc10f61ddb13cda000102030405060708090a0b0c0d0e0f"
    assert answer is not None
    assert answer.hex() == "71b7ce816675021a4c6a97056d3f6b6234453221cedef3692d9e00bb3876b1d7" + b"head".hex()
    assert len(new_question(SECRET).nonce) == 16
