"""``/v1/completions``: prompts of every kind, and every field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from parallax_api_openai.completion_request import NEUTRAL_COMPLETION
from parallax_core.api import Sampling, logprobs
from tests.unit.server.letters import ALPHABET, TOY, Letters, Site, answer, error_of, events

WARM = {"temperature": 1, "seed": 7}
SAMPLING = Sampling(temperature=1, seed=7)


def texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def logprob_of(text: str, at: int) -> float:
    """Return the log-probability of the letter at ``at`` after those before it."""
    scores = logprobs(TOY.logits(Letters().encode(text[:at])))
    return scores[ALPHABET.index(text[at])]


@pytest.mark.parametrize(
    ("prompt", "plain"),
    [
        ("hello", ["hello"]),
        (["hello", "world"], ["hello", "world"]),
        ([7, 4, 11, 11, 14], ["hello"]),
        ([[7, 4, 11, 11, 14], [0]], ["hello", "a"]),
    ],
)
def test_prompt_may_be_text_or_tokens_one_or_many(site: Site, prompt: Any, plain: list[str]) -> None:
    response = site.complete(prompt, max_tokens=5)
    assert texts(response) == [answer(each, 5) for each in plain]
    assert [choice["index"] for choice in response.json()["choices"]] == list(range(len(plain)))
    assert response.json()["usage"]["completion_tokens"] == 5 * len(plain)
    assert response.json()["object"] == "text_completion"


def test_answer_has_sixteen_tokens_unless_told_otherwise(site: Site) -> None:
    assert texts(site.complete()) == [answer("hello", 16)]


def test_answers_to_one_prompt_stand_side_by_side(site: Site) -> None:
    wanted = [answer(prompt, 4, SAMPLING, choice) for prompt in ("ab", "cd") for choice in range(2)]
    assert texts(site.complete(["ab", "cd"], n=2, max_tokens=4, **WARM)) == wanted


def test_stream_of_several_prompts_is_told_apart_by_index(site: Site) -> None:
    *chunks, last, done = events(
        site.complete(["ab", "cd"], n=2, max_tokens=4, stream=True, stream_options={"include_usage": True}, **WARM)
    )
    assert done == "[DONE]"
    pieces = [""] * 4
    for chunk in chunks:
        pieces[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert pieces == [answer(prompt, 4, SAMPLING, choice) for prompt in ("ab", "cd") for choice in range(2)]
    assert last["usage"]["completion_tokens"] == 16
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_echo_begins_with_the_prompt(site: Site) -> None:
    assert texts(site.complete("hello", echo=True, max_tokens=3)) == ["hello" + answer("hello", 3)]
    *chunks, _ = events(site.complete("hello", echo=True, max_tokens=3, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello" + answer("hello", 3)


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_with_logprobs_scores_the_prompt(site: Site, max_tokens: int) -> None:
    response = site.complete("hello", echo=True, max_tokens=max_tokens, logprobs=2)
    [choice] = response.json()["choices"]
    text = "hello" + answer("hello", max_tokens)
    assert choice["text"] == text
    found = choice["logprobs"]
    assert found["tokens"] == list(text)
    assert found["text_offset"] == list(range(len(text)))
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    wanted = [logprob_of(text, at) for at in range(1, len(text))]
    assert found["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-4)
    assert all(2 <= len(top) <= 3 for top in found["top_logprobs"][1:])
    assert response.json()["usage"]["completion_tokens"] == max_tokens


def test_scores_of_a_prompt_are_the_same_when_it_is_known(site: Site) -> None:
    first = site.complete("hello", echo=True, max_tokens=0, logprobs=1).json()["choices"]
    assert site.complete("hello", echo=True, max_tokens=0, logprobs=1).json()["choices"] == first


def test_no_tokens_at_all_give_an_empty_answer(site: Site) -> None:
    body = site.complete("hello", max_tokens=0).json()
    assert texts(site.complete("hello", max_tokens=0)) == [""]
    assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", 0)


def test_best_of_sends_the_most_probable_answers(site: Site) -> None:
    drawn = [answer("hello", 5, SAMPLING, choice) for choice in range(6)]
    means = [sum(logprob_of("hello" + text, 5 + at) for at in range(5)) / 5 for text in drawn]
    wanted = [drawn[index] for index in sorted(range(6), key=lambda index: -means[index])[:2]]
    response = site.complete("hello", best_of=6, n=2, max_tokens=5, **WARM)
    assert texts(response) == wanted
    assert response.json()["usage"]["completion_tokens"] == 30
    assert response.json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [99]}, "prompt"),
        ({"prompt": "a" * 500}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": [[1]] * 257}, "prompt"),
        ({"prompt": [-1] * 100_000}, "prompt"),
        ({"top_p": math.nan}, "top_p"),
        ({"logit_bias": {"1": math.nan}}, "logit_bias"),
        ({"timeout": math.inf}, "timeout"),
        ({"suffix": "x"}, "suffix"),
        ({"messages": []}, "messages"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
)
def test_wrong_field_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    error = error_of(site.post("/v1/completions", **{"model": "toy", "prompt": "a", **fields}))
    assert error["param"].partition(".")[0] == param


def test_one_bad_prompt_leaves_nothing_running(site: Site) -> None:
    error_of(site.complete(["a", "b" * 500], max_tokens=300))
    assert texts(site.complete("hello", max_tokens=5)) == [answer("hello", 5)]


def test_values_that_ask_for_nothing_are_accepted(site: Site) -> None:
    for fields in ({name: value} for name, values in NEUTRAL_COMPLETION.items() for value in (*values, None)):
        assert site.complete(max_tokens=1, **fields).status_code == 200, fields
