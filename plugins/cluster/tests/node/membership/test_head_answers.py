from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.membership.discovery import index_secrets, new_question
from parallax_cluster.node.membership import head_answers
from parallax_cluster.node.membership.head_answers import FoundHead, HeadAnswers
from parallax_core.base.errors import ParallaxError
from tests.unit.node.cluster import until

SECRET = b"proof of a code"


class Head:
    """A head whose secrets and description change."""

    def __init__(self, *secrets: bytes) -> None:
        self.secrets = list(secrets)
        self.description = b"head"
        self.num_looks = 0
        self.fault = ""

    def look(self) -> FoundHead:
        self.num_looks += 1
        if self.fault:
            raise ParallaxError(self.fault)
        return FoundHead(index_secrets(self.secrets), self.description)


@asynccontextmanager
async def answering(head: Head) -> AsyncIterator[HeadAnswers]:
    answers = HeadAnswers(head.look)
    try:
        yield answers
    finally:
        await answers.close()


def ask(answers: HeadAnswers, secret: bytes) -> bytes | None:
    question = new_question(secret)
    answer = answers.reply(question.data)
    return None if answer is None else question.read(answer)


async def test_repeated_question_is_answered() -> None:
    async with answering(Head(SECRET)) as answers:
        await until(lambda: ask(answers, SECRET) == b"head")
        assert ask(answers, b"another proof") is None


async def test_nothing_is_read_before_a_question() -> None:
    head = Head(SECRET)
    async with answering(head):
        await asyncio.sleep(0.01)
    assert head.num_looks == 0


async def test_new_code_and_new_address_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_answers, "FRESH_S", 0.01)
    head = Head()
    async with answering(head) as answers:
        await until(lambda: ask(answers, SECRET) is None and head.num_looks >= 1)
        head.secrets.append(SECRET)
        await until(lambda: ask(answers, SECRET) == b"head")
        head.description = b"moved"
        await until(lambda: ask(answers, SECRET) == b"moved")


async def test_many_questions_read_once() -> None:
    head = Head(SECRET)
    async with answering(head) as answers:
        for _ in range(1000):
            ask(answers, SECRET)
        await until(lambda: ask(answers, SECRET) == b"head")
        assert head.num_looks == 1


async def test_codes_that_cannot_be_read_leave_the_last_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head_answers, "FRESH_S", 0.01)
    head = Head(SECRET)
    async with answering(head) as answers:
        await until(lambda: ask(answers, SECRET) == b"head")
        head.fault = "the disk is full"
        await until(lambda: bool(ask(answers, SECRET)) and "the disk is full" in caplog.text)
        assert ask(answers, SECRET) == b"head"
