from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_chat_requests.engine_request import LEAST_TEMPERATURE, check_tokens, read_chat, read_prompts
from parallax_chat_requests.request_models import ChatRequest
from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Request
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import ParsedBody
from tests.unit.tinymodel import write, write_model

MESSAGES = [{"role": "user", "content": "hi"}]
END = 256
"""The token that ends answers."""


@pytest.fixture
def text(tmp_path: Path) -> ModelTokenizer:
    write_model(tmp_path)
    write(tmp_path, "generation_config.json", temperature=0.5, top_k=40, max_new_tokens=77, eos_token_id=END)
    return ModelTokenizer(tmp_path)


def parse(text: ModelTokenizer, **fields: Any) -> ParsedBody:
    return read_chat(text, ChatRequest.model_validate({"messages": MESSAGES, **fields}))


def read(text: ModelTokenizer, **fields: Any) -> Request:
    return parse(text, **fields).request


@pytest.mark.parametrize(
    ("given", "temperature", "top_k", "top_p"),
    [
        ({}, 0.5, 40, 1.0),
        ({"temperature": 0}, 0, 40, 1.0),
        ({"temperature": LEAST_TEMPERATURE}, LEAST_TEMPERATURE, 40, 1.0),
        ({"temperature": LEAST_TEMPERATURE / 2}, 0, 40, 1.0),
        ({"top_k": -1}, 0.5, 0, 1.0),
        ({"top_k": 0}, 0.5, 0, 1.0),
        ({"top_k": 3, "top_p": 0.25}, 0.5, 3, 0.25),
        ({"top_k": 3, "top_p": 0}, 0.5, 1, 1.0),
    ],
)
def test_sampling_is_the_models_where_a_client_says_nothing(
    text: ModelTokenizer, given: dict[str, Any], temperature: float, top_k: int, top_p: float
) -> None:
    sampling = read(text, **given).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (temperature, top_k, top_p)


def test_length_is_the_clients_under_either_name_and_else_the_models(text: ModelTokenizer) -> None:
    fields = [{}, {"max_tokens": 5}, {"max_completion_tokens": 6}]
    found = [parse(text, **each) for each in fields]
    assert [(each.request.max_tokens, each.request.default_max_tokens) for each in found] == [
        (None, 77),
        (5, 77),
        (6, 77),
    ]
    assert [each.form.length_field for each in found] == [
        "max_completion_tokens",
        "max_tokens",
        "max_completion_tokens",
    ]


def test_least_length_is_at_most_the_largest(text: ModelTokenizer) -> None:
    assert read(text, min_tokens=5, max_tokens=5).sampling.min_tokens == 5
    assert read(text, min_tokens=500).sampling.min_tokens == 500
    with pytest.raises(InvalidRequest, match="'min_tokens' is 6, and 'max_tokens' 5") as caught:
        read(text, min_tokens=6, max_tokens=5)
    assert caught.value.param == "min_tokens"


def test_stop_tokens_are_the_models_and_the_clients(text: ModelTokenizer) -> None:
    assert read(text).stop_ids == text.stop_ids >= {END}
    assert read(text, stop_token_ids=[3]).stop_ids == text.stop_ids | {3}
    assert read(text, stop_token_ids=[3], ignore_eos=True).stop_ids == {3}
    assert read(text, stop_token_ids=[9, 3], min_tokens=2, ignore_eos=True).sampling.stop_ids == (3, 9)
    assert read(text, stop_token_ids=[3]).sampling.stop_ids == ()


@pytest.mark.parametrize(("given", "logprobs"), [({}, None), ({"logprobs": True}, 0), ({"logprobs": False}, None)])
def test_log_probabilities_are_those_that_are_asked_for(
    text: ModelTokenizer, given: dict[str, Any], logprobs: int | None
) -> None:
    assert read(text, **given).logprobs == logprobs
    if logprobs is not None:
        assert read(text, top_logprobs=7, **given).logprobs == 7


def test_seed_is_the_clients_and_else_another_each_time(text: ModelTokenizer) -> None:
    assert (parse(text, seed=-1).seeds, read(text, seed=0).is_seeded) == ((2**64 - 1,), True)
    assert parse(text).seeds != parse(text).seeds
    assert not read(text).is_seeded


def test_token_that_the_model_lacks_is_refused_by_the_name_of_its_field(text: ModelTokenizer) -> None:
    last = text.vocab_size - 1
    check_tokens(text, [], "prompt")
    assert read(text, logit_bias={str(last): 1.5, "3": -1}).sampling.logit_bias == ((3, -1.0), (last, 1.5))
    for given in ({"logit_bias": {str(last + 1): 1}}, {"stop_token_ids": [3, last + 1]}):
        [name] = given
        with pytest.raises(InvalidRequest, match=f"'{name}' has token {last + 1}, .* tokens end at {last}") as caught:
            read(text, **given)
        assert caught.value.param == name


def test_prompts_are_texts_or_tokens_one_or_several(text: ModelTokenizer) -> None:
    encoded = text.encode("hi")
    assert read_prompts(text, "hi") == [encoded]
    assert read_prompts(text, list(encoded)) == [encoded]
    assert read_prompts(text, ["hi", "hi"]) == [encoded] * 2
    assert read_prompts(text, [[1, 2], [3]]) == [(1, 2), (3,)]
    with pytest.raises(InvalidRequest) as caught:
        read_prompts(text, [[1], [text.vocab_size]], "input")
    assert caught.value.param == "input"


def test_everything_else_is_passed_on(text: ModelTokenizer) -> None:
    request = read(text, n=3, stop=["x"], priority=-2, timeout=1.5, cache_salt="s")
    found = (request.n, request.stop, request.priority, request.timeout_s, request.salt)
    assert found == (3, ("x",), -2, 1.5, "s")
    plain = read(text)
    assert (plain.n, plain.stop, plain.priority, plain.timeout_s, plain.salt) == (1, (), 0, None, "")
    form = parse(text, model="m", n=2, stream=True, stream_options={"include_usage": True}).form
    assert (form.model, form.num_answers, form.streams, form.includes_usage) == ("m", 2, True, True)
    assert (form.prompt_field, form.forced_call, form.allows_many_calls) == ("messages", None, True)
