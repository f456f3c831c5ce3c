from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from parallax_core.api import (
    Content,
    Delta,
    Engine,
    Finish,
    ParserSpec,
    Piece,
    Reasoning,
    Ref,
    Request,
    RequestId,
    Sampling,
    Timing,
)
from parallax_core.models.output_parser import OutputParser
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.reasoning_limit import ReasoningLimit
from tests.unit.server.letters import TOY, Letters, Site, answer, error_of, events

PROMPT, LIMIT = "hello", 4


class PipeParser:
    """Everything before the first full stop is reasoning."""

    def __init__(self) -> None:
        self._reasons = True

    def feed(self, text: str) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for letter in text:
            if self._reasons and letter == ".":
                self._reasons = False
            else:
                pieces.append(Reasoning(letter) if self._reasons else Content(letter))
        return pieces

    def finish(self) -> Sequence[Piece]:
        return []


SPEC = ParserSpec(name="pipe", summary="", factory=Ref("x:X"), reasoning_end=".")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(parser=OutputParser(SPEC, PipeParser)) as site:
        yield site


def expect(length: int) -> tuple[str, str]:
    """Return the reasoning up to the limit, and the answer that the toy gives after it and its end."""
    reasoning = answer(PROMPT, LIMIT)
    assert "." not in reasoning
    return reasoning, answer(f"{PROMPT}{reasoning}.", length)


def test_reasoning_ends_at_the_limit_and_the_answer_follows(site: Site) -> None:
    reasoning, content = expect(6)
    response = site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=LIMIT + 1 + 6).json()
    message = response["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (reasoning, content)
    assert response["choices"][0]["finish_reason"] == "length"
    usage = response["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), LIMIT + 1 + 6)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == LIMIT


def test_reasoning_ends_only_if_there_is_room_for_an_answer_after_it(site: Site) -> None:
    for most in (LIMIT + 1, LIMIT + 2):
        limited = site.ask(PROMPT, max_tokens=most, max_reasoning_tokens=LIMIT).json()["choices"]
        assert (limited == site.ask(PROMPT, max_tokens=most).json()["choices"]) == (most == LIMIT + 1)


def test_stream_has_the_same(site: Site) -> None:
    reasoning, content = expect(6)
    *chunks, done = events(site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=LIMIT + 1 + 6, stream=True))
    assert done == "[DONE]"
    deltas: list[dict[str, Any]] = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == reasoning
    assert "".join(delta.get("content", "") for delta in deltas) == content


def test_reasoning_within_the_limit_is_as_without(site: Site) -> None:
    whole = site.ask(PROMPT, max_tokens=6).json()["choices"]
    assert site.ask(PROMPT, max_tokens=6, max_reasoning_tokens=300).json()["choices"] == whole


def test_penalties_count_the_reasoning(site: Site) -> None:
    """The answer goes on as if the model had written the end of the reasoning itself."""
    fields = {"max_tokens": 12, "presence_penalty": 2, "max_reasoning_tokens": LIMIT}
    found = site.ask(PROMPT, **fields).json()["choices"][0]["message"]
    sampling = replace_sampling(presence_penalty=2)
    start = Letters().encode(PROMPT)
    reasoning = TOY.continuation(start, LIMIT, sampling)
    assert found["reasoning"] == Letters().decode(reasoning)
    plain = answer(f"{PROMPT}{found['reasoning']}.", 7, sampling)
    assert found["content"] != plain, "a prompt would not count for this penalty"


def replace_sampling(**changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(Letters.sampling, **changes)


def test_nothing_runs_on_after_the_limit(site: Site) -> None:
    site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=20)
    [stats] = site.engine.stats()
    assert stats.running == stats.waiting == 0
    assert not site.service.running


class Scripted:
    """An engine that gives each request the next of its scripts."""

    def __init__(self, *scripts: Sequence[Delta]) -> None:
        self.scripts = list(scripts)
        self.requests: list[Request] = []

    def submit(self, request: Request) -> ScriptedStream:
        self.requests.append(request)
        return ScriptedStream(self.scripts.pop(0))


class ScriptedStream:
    def __init__(self, deltas: Sequence[Delta]) -> None:
        self.deltas = deltas

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            yield delta

    def close(self) -> None:
        """Do nothing."""


async def test_time_of_the_reasoning_is_no_time_in_the_queue() -> None:
    timing = Timing(queued_s=1e6, prefill_s=1e6, decode_s=1e6, stages_s=(0.5,), hops_s=(0.25,))
    end = Finish(reason="stop", prompt_tokens=2, output_tokens=3, timing=timing)
    engine = Scripted([Delta(text="a", tokens=(1,))] * 2, [Delta(text="b", tokens=(4,), ended="stop", finish=end)])
    form = ResponseForm(model="", num_answers=1, max_reasoning=2, reasoning_end=(9,))
    limit = ReasoningLimit(
        cast("Engine", engine), OutputParser(SPEC, PipeParser), form, lambda tokens, **_: "a" * len(tokens)
    )
    request = Request(id=RequestId("a"), prompt=(5, 6), max_tokens=None, sampling=Sampling(), waited_s=2.0)
    deltas = [delta async for delta in limit.submit(request)]
    assert [delta.tokens for delta in deltas] == [(1,), (1,), (9,), (4,)]
    assert engine.requests[1].delivered == ((1, 1, 9),)
    assert (finish := deltas[-1].finish) is not None
    assert (found := finish.timing) is not None
    assert found.queued_s == pytest.approx(2.0)
    assert found.prefill_s + found.decode_s < 1e6
    assert (found.stages_s, found.hops_s) == ((0.5,), (0.25,))


@pytest.mark.parametrize("size", range(1, 5))
@pytest.mark.parametrize("streams", [False, True])
def test_text_that_is_held_back_at_the_limit_is_not_lost(site: Site, size: int, streams: bool) -> None:
    """The end of the reasoning is the start of a stop string, which does not follow."""
    reasoning, content = expect(6)
    fields = {"max_reasoning_tokens": LIMIT, "max_tokens": LIMIT + 1 + 6, "stop": [f"{reasoning[-size:]}??", ".???"]}
    if not streams:
        message = site.ask(PROMPT, **fields).json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == (reasoning, content)
        return
    deltas = [chunk["choices"][0]["delta"] for chunk in events(site.ask(PROMPT, **fields, stream=True))[:-1]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == reasoning
    assert "".join(delta.get("content", "") for delta in deltas) == content


@pytest.mark.parametrize("size", range(LIMIT))
def test_stop_string_across_the_limit_ends_the_answer(site: Site, size: int) -> None:
    reasoning, _ = expect(6)
    stop = f"{reasoning[LIMIT - size :]}."
    response = site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=20, stop=["zzz", stop]).json()
    [choice] = response["choices"]
    assert choice["finish_reason"] == "stop"
    assert (choice["message"]["reasoning"], choice["message"]["content"] or "") == (reasoning[: LIMIT - size], "")
    usage = response["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), LIMIT + 1)
    assert not site.service.running
    stop = f"{reasoning[LIMIT - size - 1 :]}.{answer(f'{PROMPT}{reasoning}.', 1)}"
    [choice] = site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=20, stop=[stop]).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert (choice["message"].get("reasoning", ""), choice["message"]["content"] or "") == (
        reasoning[: LIMIT - size - 1],
        "",
    )


def test_stop_token_among_those_that_end_the_reasoning_ends_the_answer(site: Site) -> None:
    [stop] = Letters().encode(".")
    [choice] = site.ask(PROMPT, max_reasoning_tokens=LIMIT, max_tokens=20, stop_token_ids=[stop]).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning"]) == ("stop", expect(6)[0])


@pytest.mark.parametrize("top", [0, 2])
def test_tokens_that_end_the_reasoning_have_log_probabilities(site: Site, top: int) -> None:
    fields = {"max_tokens": LIMIT + 1 + 6, "logprobs": True, "top_logprobs": top}
    [choice] = site.ask(PROMPT, max_reasoning_tokens=LIMIT, **fields).json()["choices"]
    reasoning, content = expect(6)
    entries = choice["logprobs"]["content"]
    tokens = "".join(entry["token"] for entry in entries)
    assert tokens in {f"{reasoning}.{content}", content}
    if tokens != content:
        end = entries[LIMIT]
        assert (end["logprob"], [each["token"] for each in end["top_logprobs"]]) == (0, ["."] if top else [])


async def test_reasoning_does_not_end_within_a_character() -> None:
    """A grammar that begins after the reasoning allows its end after whole characters only."""

    def decode(tokens: Sequence[int], **_: Any) -> str:
        return bytes(tokens).decode(errors="replace")

    engine = Scripted(
        [Delta(text="a", tokens=(97,)), Delta(tokens=(0xC3,)), Delta(text="é", tokens=(0xA9,)), Delta(text="x")],
        [Delta(text="b", tokens=(98,), ended="stop", finish=Finish(reason="stop", prompt_tokens=1, output_tokens=4))],
    )
    form = ResponseForm(model="", num_answers=1, max_reasoning=2, reasoning_end=(46,))
    limit = ReasoningLimit(cast("Engine", engine), OutputParser(SPEC, PipeParser), form, decode)
    request = Request(id=RequestId("a"), prompt=(5,), max_tokens=None, sampling=Sampling())
    assert [delta.text async for delta in limit.submit(request)] == ["a", "", "é", ".", "b"]


def test_limit_is_for_single_answers(site: Site) -> None:
    assert error_of(site.ask(max_reasoning_tokens=3, n=2))["param"] == "max_reasoning_tokens"


def test_limit_without_a_known_end_is_refused() -> None:
    with Site(parser=OutputParser(replace(SPEC, reasoning_end=""), PipeParser)) as site:
        assert error_of(site.ask(max_reasoning_tokens=3))["param"] == "max_reasoning_tokens"
