"""Requests as Claude Code sends them, to a server with the default settings and the real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.conftest import MODEL, Server

RULES = "Answer in one short sentence. Be kind, be exact, and name the place that is asked for. " * 40
QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of them is larger?", "Which is older?")


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, number: int, messages: list[Any]) -> Any:
    """Return the answer to a request whose system prompt begins with a line of its own."""
    billing = (
        f"x-anthropic-billing-header: cc_version=2.1.177.{number:03x}; cc_entrypoint=cli; cch={number * 7919:05x};"
    )
    mark: Any = {"cache_control": {"type": "ephemeral"}}
    system: Any = [{"type": "text", "text": billing}, {"type": "text", "text": RULES, **mark}]
    with client.messages.stream(
        model=MODEL,
        max_tokens=32_000,
        system=system,
        messages=messages,
        metadata={"user_id": "user_0_account__session_1"},
        stop_sequences=["\n\n\n"],
        extra_body={"temperature": 0},
    ) as stream:
        return stream.get_final_message()


def test_conversation_of_claude_code_comes_from_the_cache(client: anthropic.Anthropic) -> None:
    messages: list[Any] = []
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": [{"type": "text", "text": question}]})
        answer = ask(client, number, messages)
        assert answer.stop_reason == "end_turn"
        cached = answer.usage.cache_read_input_tokens or 0
        made = answer.usage.cache_creation_input_tokens or 0
        assert made > 0, "what is marked is pinned"
        assert number == 0 or cached >= 0.95 * (cached + made + answer.usage.input_tokens), (number, answer.usage)
        messages.append({"role": "assistant", "content": answer.content})
    assert "Paris" in messages[1]["content"][0].text


def test_counted_tokens_are_those_of_the_prompt(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": QUESTIONS[0]}]
    counted = client.messages.count_tokens(model=MODEL, system=RULES, messages=messages).input_tokens
    usage = client.messages.create(model=MODEL, max_tokens=1, system=RULES, messages=messages).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_answer_continues_a_last_turn_of_the_assistant(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": QUESTIONS[0]}, {"role": "assistant", "content": "The capital of"}]
    answer: Any = client.messages.create(model=MODEL, max_tokens=8, messages=messages, extra_body={"temperature": 0})
    assert answer.content[0].text.startswith(" France is Paris")
