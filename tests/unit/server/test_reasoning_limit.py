from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Content, ParserSpec, Piece, Reasoning, Ref
from parallax_core.models.output_parser import OutputParser
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


def test_limit_is_for_single_answers(site: Site) -> None:
    assert error_of(site.ask(max_reasoning_tokens=3, n=2))["param"] == "max_reasoning_tokens"


def test_limit_without_a_known_end_is_refused() -> None:
    with Site(parser=OutputParser(replace(SPEC, reasoning_end=""), PipeParser)) as site:
        assert error_of(site.ask(max_reasoning_tokens=3))["param"] == "max_reasoning_tokens"
