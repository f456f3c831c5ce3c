"""Every field of a chat does what it says, down to the tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from parallax_core.api import Sampling, logprobs
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import ALPHABET, TOY, Letters, Site, answer, error_of, events

WARM = {"temperature": 1, "seed": 7}
SAMPLING = Sampling(temperature=1, seed=7)


def texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["message"]["content"] for choice in response.json()["choices"]]


def scores(prompt: str) -> list[float]:
    return logprobs(TOY.logits(Letters().encode(prompt)))


def test_each_answer_is_drawn_for_itself(site: Site) -> None:
    wanted = [answer("hello", 6, SAMPLING, choice) for choice in range(3)]
    assert len(set(wanted)) == 3
    response = site.ask(n=3, max_tokens=6, **WARM)
    assert texts(response) == wanted
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2]
    assert response.json()["usage"]["completion_tokens"] == 18


def test_streamed_answers_are_told_apart_by_their_index(site: Site) -> None:
    *chunks, done = events(site.ask(n=3, max_tokens=6, stream=True, **WARM))
    assert done == "[DONE]"
    pieces = ["", "", ""]
    reasons: list[Any] = [None, None, None]
    for chunk in chunks:
        [choice] = chunk["choices"]
        pieces[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert pieces == [answer("hello", 6, SAMPLING, choice) for choice in range(3)]
    assert reasons == ["length"] * 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 3),
        ("top_p", 0.5),
        ("min_p", 0.2),
        ("presence_penalty", 1.5),
        ("frequency_penalty", -1.0),
        ("repetition_penalty", 1.7),
        ("temperature", 0.3),
        ("seed", 11),
    ],
)
def test_field_of_sampling_changes_the_draws_as_the_reference_does(site: Site, field: str, value: Any) -> None:
    sampling = Sampling(**{"temperature": 1, "seed": 7, field: value})
    assert texts(site.ask(max_tokens=12, **WARM | {field: value})) == [answer("hello", 12, sampling)]


def test_bias_makes_a_token_certain_or_impossible(site: Site) -> None:
    assert texts(site.ask(max_tokens=3, logit_bias={"4": 100})) == ["eee"]
    first = answer("hello", 1)
    banned = str(ALPHABET.index(first))
    assert texts(site.ask(max_tokens=1, logit_bias={banned: -100}))[0] != first


def test_stop_token_ends_an_answer_and_has_no_text(site: Site) -> None:
    whole = answer("hello", 8)
    stop = ALPHABET.index(whole[3])
    response = site.ask(max_tokens=8, stop_token_ids=[stop], logprobs=True)
    cut = whole[: whole.index(whole[3])]
    [choice] = response.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (cut, "stop")
    assert len(choice["logprobs"]["content"]) == len(cut)
    assert response.json()["usage"]["completion_tokens"] == len(cut) + 1


def test_stop_token_is_not_drawn_before_the_least_length(site: Site) -> None:
    stop = ALPHABET.index(answer("hello", 1))
    sampling = Sampling(temperature=0, min_tokens=4, stop_ids=(stop,))
    text = answer("hello", 4, sampling)
    assert ALPHABET[stop] not in text
    assert texts(site.ask(max_tokens=4, min_tokens=4, stop_token_ids=[stop])) == [text]


def test_end_of_text_can_be_ignored(site: Site) -> None:
    whole = answer("hello", 8)
    site.text.stop_ids = frozenset({ALPHABET.index(whole[2])})
    assert texts(site.ask(max_tokens=8)) == [whole[: whole.index(whole[2])]]
    response = site.ask(max_tokens=8, ignore_eos=True)
    assert response.json()["usage"]["completion_tokens"] == 8


def test_logprobs_are_those_of_the_raw_logits(site: Site) -> None:
    [choice] = site.ask(max_tokens=3, logprobs=True, top_logprobs=2, **WARM).json()["choices"]
    text, prompt = choice["message"]["content"], "hello"
    assert len(choice["logprobs"]["content"]) == 3
    for letter, entry in zip(text, choice["logprobs"]["content"], strict=True):
        expected = scores(prompt)
        assert (entry["token"], entry["bytes"]) == (letter, [ord(letter)])
        assert entry["logprob"] == pytest.approx(expected[ALPHABET.index(letter)], abs=1e-4)
        best = sorted(range(len(expected)), key=lambda token: -expected[token])[:2]
        assert [each["token"] for each in entry["top_logprobs"]] == [ALPHABET[token] for token in best]
        prompt += letter


def test_streamed_logprobs_join_to_the_same(site: Site) -> None:
    fields = {"max_tokens": 4, "logprobs": True, "top_logprobs": 1, **WARM}
    [whole] = site.ask(**fields).json()["choices"]
    chunks = events(site.ask(stream=True, **fields))[:-1]
    joined = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert joined == whole["logprobs"]["content"]
    assert all(math.isfinite(entry["logprob"]) for entry in joined)


def test_no_logprobs_unless_asked(site: Site) -> None:
    assert site.ask(max_tokens=2).json()["choices"][0]["logprobs"] is None


def test_priority_reaches_the_stage(site: Site) -> None:
    seen: list[int] = []
    site.stage.before_open = lambda spec: seen.append(spec.priority)
    site.ask(max_tokens=1, priority=-3)
    assert seen == [-3]


def test_request_that_takes_too_long_is_a_408(site: Site) -> None:
    import time

    site.stage.before_step = lambda batch: time.sleep(0.05)
    error = error_of(site.ask(max_tokens=300, timeout=0.3), 408)
    assert "0.3 seconds" in error["message"]
    *_, last = events(site.ask(max_tokens=300, timeout=0.3, stream=True))
    assert last["error"]["code"] == "timeout"


def test_time_of_a_request_that_sets_no_limit_is_that_of_the_server() -> None:
    import time

    with Site(ServerOptions(default_timeout_s=0.3)) as site:
        site.stage.before_step = lambda batch: time.sleep(0.02)
        message = "timed out after 0.3 seconds; that is the server's default_timeout: send a longer 'timeout'"
        assert error_of(site.ask(max_tokens=300), 408)["message"] == message
        *_, last = events(site.ask(max_tokens=300, stream=True))
        assert last["error"]["message"] == message
        assert site.ask(max_tokens=25, timeout=60).status_code == 200
        assert error_of(site.ask(max_tokens=300, timeout=0.2), 408)["message"] == "timed out after 0.2 seconds"


TURNS = [{"role": "user", "content": "hello"}]
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 300},
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 300},
    "/v1/responses": {"input": "hello", "max_output_tokens": 300},
    "/v1/messages": {"messages": TURNS, "max_tokens": 300},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_time_that_the_server_limits_ends_requests_of_every_dialect(path: str) -> None:
    import time

    with Site(ServerOptions(default_timeout_s=0.3)) as site:
        site.stage.before_step = lambda batch: time.sleep(0.02)
        whole = site.client.post(path, json={"model": "toy", **DIALECTS[path]})
        assert whole.status_code == 408
        assert "that is the server's default_timeout" in whole.json()["error"]["message"]
        streamed = site.client.post(path, json={"model": "toy", "stream": True, **DIALECTS[path]})
        assert streamed.status_code == 200
        *_, last = [line for line in streamed.text.splitlines() if "default_timeout" in line]
        assert "timed out after 0.3 seconds" in last
        assert not site.service.running


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}])
def test_request_that_names_no_model_means_the_only_one(site: Site, path: str, named: dict[str, Any]) -> None:
    answered = site.client.post(path, json={**DIALECTS[path], **named})
    assert (answered.status_code, answered.json()["model"]) == (200, "toy")


def test_template_gets_the_variables_of_the_request(site: Site) -> None:
    response = site.ask("hel", chat_template_kwargs={"suffix": "lo"}, max_tokens=5)
    assert texts(response) == [answer("hello", 5)]
    error_of(site.ask(chat_template_kwargs={"forbidden": 1}))


def test_stop_string_does_not_end_an_answer_before_the_least_length(site: Site) -> None:
    whole = answer("hello", 12)
    early, late = whole[1], whole[6:8]
    assert texts(site.ask(max_tokens=12, stop=[early])) == [whole[: whole.index(early)]]
    response = site.ask(max_tokens=12, min_tokens=6, stop=[early, late])
    [choice] = response.json()["choices"]
    ends = [at for stop in (early, late) if (at := whole.find(stop, 7 - len(stop))) >= 0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (whole[: min(ends)], "stop")
    assert response.json()["usage"]["completion_tokens"] > 6


def test_least_length_that_cannot_be_reached_is_refused(site: Site) -> None:
    assert error_of(site.ask(min_tokens=396))["param"] == "min_tokens"
    assert site.ask("hello", min_tokens=395).json()["usage"]["completion_tokens"] == 395
