"""The main job: the official client gets the right answer."""

from __future__ import annotations

import concurrent.futures
import json
import time
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MODEL, Server

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none needed", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=QUESTION, **fields)


def test_ready_line_is_the_promised_one(server: Server) -> None:
    assert server.lines == [f"ready {server.url} model={MODEL}\n"]


def test_client_streams_the_answer(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, temperature=0))
    assert len(chunks) > 5
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_client_gets_the_answer_at_once(client: openai.OpenAI) -> None:
    completion = ask(client, temperature=0)
    assert completion.choices[0].message.content == ANSWER
    assert completion.usage.completion_tokens == 8


def test_client_that_says_nothing_of_sampling_gets_sensible_answers(client: openai.OpenAI) -> None:
    answers = [choice.message.content for choice in ask(client, n=8, seed=1).choices]
    assert [answer for answer in answers if not answer.startswith("The capital of France is Paris")] == []


def test_client_gets_several_answers_with_their_logprobs(client: openai.OpenAI) -> None:
    completion = ask(client, n=3, seed=5, temperature=1, max_tokens=6, logprobs=True, top_logprobs=2)
    texts = [choice.message.content for choice in completion.choices]
    assert len(set(texts)) > 1
    for choice in completion.choices:
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    again = ask(client, n=3, seed=5, temperature=1, max_tokens=6)
    assert [choice.message.content for choice in again.choices] == texts


def test_client_continues_and_scores_text(client: openai.OpenAI) -> None:
    text = "The capital of France is"
    completion = client.completions.create(model=MODEL, prompt=text, max_tokens=1, temperature=0, echo=True, logprobs=1)
    [choice] = completion.choices
    assert choice.text == f"{text} Paris"
    assert choice.logprobs is not None
    found = choice.logprobs.model_dump()
    assert found["token_logprobs"][0] is None
    assert found["tokens"] == ["The", " capital", " of", " France", " is", " Paris"]
    assert found["text_offset"] == [0, 3, 11, 14, 21, 24]


def test_client_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_model_calls_a_tool_that_it_has_to_call(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools: Any = [
        {"type": "function", "function": {"name": "look", "parameters": {**schema, "additionalProperties": False}}}
    ]
    [choice] = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=0).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "look")
    assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_client_sees_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        ask(client, temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)


def test_seed_gives_the_same_answer_alone_and_among_others(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        completion = ask(client, seed=seed, temperature=1, top_p=0.9, max_tokens=10, extra_body={"top_k": 50})
        return str(completion.choices[0].message.content)

    alone = [sample(seed) for seed in range(3)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        among = list(pool.map(sample, [*range(3), *range(3)]))
    assert among == alone + alone
    assert len(set(alone)) > 1


def used_afterwards(server: Server) -> float:
    """Return the share of one processor the server uses a moment from now."""
    time.sleep(1.5)  # the step in flight may end, and nothing more
    before = server.cpu_seconds()
    time.sleep(1)
    return server.cpu_seconds() - before


STORY: Any = [{"role": "user", "content": "Tell me a long story about a dragon and a fox."}]


def test_client_that_leaves_a_stream_stops_its_generation(server: Server, client: openai.OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=STORY, stream=True, max_tokens=2000) as stream:
        next(iter(stream))
        busy, end = server.cpu_seconds(), time.monotonic() + 20
        while server.cpu_seconds() - busy < 0.2:
            assert time.monotonic() < end, "it generates nothing"
            time.sleep(0.1)
    assert used_afterwards(server) < 0.2


def test_client_that_gives_up_waiting_stops_its_generation(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(model=MODEL, messages=STORY, max_tokens=2000)
    assert used_afterwards(server) < 0.2
