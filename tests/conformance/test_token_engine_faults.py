"""Each fault is planted in an engine that gives tokens; the kit sees it through core's text and through a link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Delta, Engine, EngineInfo, Request, Sampling, Stream, TokenEngine
from parallax_core.testing.stage_engine import StageEngine, make_toy_engine
from parallax_core.testing.token_engine import TextEngine
from tests.conformance.harness import run_test
from tests.conformance.test_engine import TOY, ToyKit, decode
from tests.support.engine_workers import link_task


class Faulty(StageEngine):
    """A healthy engine; what derives from it plants a fault."""

    def __init__(self) -> None:
        self.engine = make_toy_engine(TOY).engine

    def submit(self, request: Request) -> Stream:
        return Relay(self, super().submit(self.change(request)))

    def change(self, request: Request) -> Request:
        return request

    def show(self, delta: Delta) -> Delta:
        return delta


class Relay:
    """The stream of a faulty engine."""

    def __init__(self, engine: Faulty, stream: Any) -> None:
        self.engine, self.stream = engine, stream

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            yield self.engine.show(delta)

    def close(self) -> None:
        self.stream.close()


class Greedy(Faulty):
    """Gives more tokens than asked for."""

    def change(self, request: Request) -> Request:
        return replace(request, max_tokens=(request.max_tokens or 0) + 1)


class Unstopped(Faulty):
    """Goes on after a stop id."""

    def change(self, request: Request) -> Request:
        return replace(request, stop_ids=frozenset())


class Unending(Faulty):
    """Never says that an answer has ended."""

    def show(self, delta: Delta) -> Delta:
        return replace(delta, ended=None, finish=None)


class Silent(Faulty):
    """Gives no log-probabilities, which it has declared."""

    def show(self, delta: Delta) -> Delta:
        return replace(delta, logprobs=(), prompt_logprobs=())


class Wandering(Faulty):
    """Draws by seeds of its own, and declares exact ones."""

    count = 0

    def change(self, request: Request) -> Request:
        Wandering.count += 1
        return replace(request, sampling=Sampling(seed=Wandering.count, temperature=request.sampling.temperature))


class Swapped(Faulty):
    """Gives every answer the index of the first."""

    def show(self, delta: Delta) -> Delta:
        return replace(delta, index=0)


class Boasting(Faulty):
    """Declares adapters, which it does not know."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, honours=super().info.honours | {"adapter"})

    def change(self, request: Request) -> Request:
        return replace(request, adapter="")


class Endless(Faulty):
    """Declares a longer context than it has."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, context_length=10_000)

    def change(self, request: Request) -> Request:
        return replace(request, prompt=request.prompt[:3], max_tokens=min(request.max_tokens or 1, 40))


FAULTS: list[tuple[type[Faulty], str, str]] = [
    (Greedy, "test_answer_has_as_many_tokens_as_asked_for", "1 tokens were requested, and 2 were returned"),
    (Unstopped, "test_stop_id_ends_the_text", "with stop id"),
    (
        Unending,
        "test_started_engine_is_ready",
        "those with a finish are []|ended its answer without a reason",
    ),
    (Silent, "test_logprobs_come_with_every_token", "are for []"),
    (Silent, "test_logprobs_of_the_prompt_come_first", "are for ()"),
    (Wandering, "test_seeds_decide_the_draws", "the same seeds give"),
    (Swapped, "test_several_answers_are_each_whole", "IndexError|came with lengths|had ended|have not ended"),
    (Boasting, "test_invalid_requests_are_refused_and_do_no_harm", "submitting an adapter"),
    (Endless, "test_invalid_requests_are_refused_and_do_no_harm", "submitting a prompt longer than the context"),
]

PLACES: dict[str, Callable[[Callable[[], TokenEngine]], TokenEngine]] = {
    "here": lambda make: make(),
    "link": lambda make: link_task(make, TOY),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("fault", "name", "finding"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_kit_catches_a_fault(fault: type[Faulty], name: str, finding: str, place: str) -> None:
    class Kit(ToyKit):
        patience_s = 1.5

        def make_engine(self) -> Engine:
            return TextEngine(PLACES[place](fault), decode)

    found = run_test(Kit, name)
    assert any(each in found for each in finding.split("|")), found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", sorted({name for _, name, _ in FAULTS}))
def test_healthy_engine_passes_what_catches_faults(name: str, place: str) -> None:
    class Kit(ToyKit):
        def make_engine(self) -> Engine:
            return TextEngine(PLACES[place](Faulty), decode)

    assert run_test(Kit, name) == ""
