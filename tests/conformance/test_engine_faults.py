"""Each fault is planted around a healthy engine, and the kit is asked whether it sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from parallax_core.api import (
    BackendFailed,
    Delta,
    Engine,
    Health,
    InvalidRequest,
    Request,
    Sampling,
    Stream,
    TokenLogprob,
    Unavailable,
)
from tests.conformance.harness import list_tests, run_test
from tests.conformance.test_engine import ToyKit


class Relay:
    """A stream passed on, healthy; faults are planted in `relay`."""

    def __init__(self, engine: Wrapper, stream: Stream, request: Request) -> None:
        self.engine, self.stream, self.request = engine, stream, request

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self.relay()

    async def relay(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            yield self.change(delta)

    def change(self, delta: Delta) -> Delta:
        return delta

    def close(self) -> None:
        self.stream.close()


class Wrapper:
    """An engine passed on, healthy."""

    relay: type[Relay] = Relay

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def start(self) -> None:
        await self.engine.start()

    async def stop(self) -> None:
        await self.engine.stop()

    def submit(self, request: Request) -> Stream:
        return self.relay(self, self.engine.submit(self.change(request)), request)

    def change(self, request: Request) -> Request:
        return request

    def health(self) -> Health:
        return self.engine.health()


class Unending(Relay):
    """Loses the terminal delta."""

    async def relay(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            if delta.finish is None:
                yield delta


class Hanging(Relay):
    """Loses the terminal delta, and waits for it for ever."""

    async def relay(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            if delta.finish is not None:
                await asyncio.get_running_loop().create_future()
            yield delta


class Doubling(Relay):
    """Says twice that it is over."""

    async def relay(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            yield delta
            if delta.finish is not None:
                yield Delta(finish=delta.finish)


class Going(Relay):
    """Says more when it is over."""

    async def relay(self) -> AsyncIterator[Delta]:
        async for delta in self.stream:
            yield delta
        yield Delta(text="and")


class Reopening(Relay):
    """Ends an answer with every token."""

    def change(self, delta: Delta) -> Delta:
        return replace(delta, ended=delta.ended or "length")


class Deaf(Relay):
    """Does not care about being closed."""

    def close(self) -> None:
        """Go on."""


class Brittle(Relay):
    """Can be closed once."""

    is_closed = False

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        super().close()


class Miscounting(Relay):
    """Does not count the last token."""

    def change(self, delta: Delta) -> Delta:
        finish = delta.finish
        return replace(delta, finish=replace(finish, output_tokens=finish.output_tokens - 1)) if finish else delta


class Mute(Relay):
    """Loses the text that comes last."""

    def change(self, delta: Delta) -> Delta:
        return replace(delta, text="") if delta.finish else delta


class Vague(Relay):
    """Does not say what happened."""

    def change(self, delta: Delta) -> Delta:
        return replace(delta, finish=replace(delta.finish, message="")) if delta.finish else delta


class Unlikely(Relay):
    """Gives log-probabilities that are none."""

    def change(self, delta: Delta) -> Delta:
        return replace(delta, logprobs=tuple(TokenLogprob(it.token, 1.0, it.top) for it in delta.logprobs))


class Late(Relay):
    """Gives those of the prompt with every delta."""

    first: tuple[TokenLogprob, ...] = ()

    def change(self, delta: Delta) -> Delta:
        self.first = self.first or delta.prompt_logprobs
        return replace(delta, prompt_logprobs=self.first)


class Rushing(Wrapper):
    """Is ready before it is started."""

    def health(self) -> Health:
        return Health(state="ready")


class Lazy(Wrapper):
    """Does not start."""

    async def start(self) -> None:
        """Do nothing."""


class Littering(Wrapper):
    """Leaves a thread when its start fails, or when it stops."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.over = threading.Event()
        threading.Thread(target=self.over.wait, args=(8,), daemon=True).start()


class Abandoning(Wrapper):
    """Stops, and tells no stream."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.is_over = False

    async def stop(self) -> None:
        self.is_over = True
        await super().stop()

    class relay(Relay):  # noqa: N801 - as above
        def __aiter__(self) -> AsyncIterator[Delta]:
            return self.wait()

        async def wait(self) -> AsyncIterator[Delta]:
            if isinstance(self.engine, Abandoning) and self.engine.is_over:
                await asyncio.get_running_loop().create_future()
            async for delta in self.stream:
                yield delta


class Unwatched(Wrapper):
    """Has a task that it does not watch let every delta pass."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def start(self) -> None:
        await super().start()
        self.passing = asyncio.create_task(self.let_pass())

    async def stop(self) -> None:
        self.passing.cancel()
        await super().stop()

    async def let_pass(self) -> None:
        while True:
            (await self.waiting.get()).set_result(None)

    class relay(Relay):  # noqa: N801 - as above
        async def relay(self) -> AsyncIterator[Delta]:
            assert isinstance(self.engine, Unwatched)
            async for delta in self.stream:
                self.engine.waiting.put_nowait(may_pass := asyncio.get_running_loop().create_future())
                await may_pass
                yield delta


class Once(Wrapper):
    """Can be stopped once."""

    is_stopped = False

    async def stop(self) -> None:
        if self.is_stopped:
            raise BackendFailed("it has stopped already")
        self.is_stopped = True
        await super().stop()


class Welcoming(Wrapper):
    """Takes requests at any time."""

    def submit(self, request: Request) -> Stream:
        try:
            return super().submit(request)
        except Unavailable:
            return Relay(self, self, request)

    def __aiter__(self) -> AsyncIterator[Delta]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


class Leaking(Wrapper):
    """Stops working on what was closed only in the books; whoever asks later finds it full."""

    num_closed = 0

    class relay(Relay):  # noqa: N801 - it is what `Wrapper` names
        def close(self) -> None:
            self.stream.close()
            assert isinstance(self.engine, Leaking)
            self.engine.num_closed += 1

    def submit(self, request: Request) -> Stream:
        if self.num_closed > 20:
            raise Unavailable("full")
        return super().submit(request)


class Confusing(Wrapper):
    """Computes another prompt's tokens when several requests are open."""

    num_open = 0

    def change(self, request: Request) -> Request:
        self.num_open += 1
        return replace(request, prompt=(*request.prompt[:-1], 7)) if self.num_open > 1 else request

    class relay(Relay):  # noqa: N801 - as above
        def change(self, delta: Delta) -> Delta:
            assert isinstance(self.engine, Confusing)
            self.engine.num_open -= delta.finish is not None
            return delta


class Ignoring(Wrapper):
    """Does not look at some fields."""

    fields: tuple[str, ...] = ()

    def change(self, request: Request) -> Request:
        default = Request(id=request.id, prompt=(1,), max_tokens=None, sampling=Sampling(seed=9))
        return replace(request, **{name: getattr(default, name) for name in self.fields})


def ignore(*fields: str) -> type[Wrapper]:
    return type("Ignoring" + "".join(fields), (Ignoring,), {"fields": fields})


class Overlong(Wrapper):
    """Gives a token more than was asked for."""

    def change(self, request: Request) -> Request:
        return replace(request, max_tokens=(request.max_tokens or 0) + 1)


class Patching(Wrapper):
    """Makes something of what makes no sense."""

    def submit(self, request: Request) -> Stream:
        try:
            return super().submit(request)
        except InvalidRequest:
            return super().submit(replace(request, prompt=(1,), max_tokens=1, adapter=""))


class Wandering(Wrapper):
    """Draws differently every time."""

    count = 0

    def change(self, request: Request) -> Request:
        self.count += 1
        return replace(request, sampling=Sampling(seed=self.count, temperature=request.sampling.temperature))


def say(relay: type[Relay]) -> type[Wrapper]:
    return type(relay.__name__, (Wrapper,), {"relay": relay})


ENDS = ("error_that_ends_a_task", "panic_that_ends_a_task", "exit_that_ends_a_task", "cancelled_task")
FAULTS: list[tuple[type[Wrapper], str, str]] = [
    (say(Unending), "test_answer_has_as_many_tokens_as_asked_for", "those with a finish are []"),
    (say(Hanging), "test_answer_has_as_many_tokens_as_asked_for", "a stream did not end"),
    (say(Doubling), "test_started_engine_is_ready", "those with a finish are [7, 8]"),
    (say(Going), "test_started_engine_is_ready", "those with a finish are [7]"),
    (say(Reopening), "test_started_engine_is_ready", "had ended, and goes on"),
    (say(Deaf), "test_closed_stream_is_aborted", "more tokens"),
    (say(Brittle), "test_close_is_harmless_twice_and_after_the_end", "close raised"),
    (say(Miscounting), "test_answer_has_as_many_tokens_as_asked_for", "has another count"),
    (say(Miscounting), "test_several_answers_are_each_whole", "has another count"),
    (say(Mute), "test_text_is_that_of_the_tokens", "came with the text"),
    (say(Vague), "test_request_that_takes_too_long_ends_with_an_error", "timeout"),
    (say(Vague), "test_stop_ends_every_stream", "ended with"),
    (say(Unlikely), "test_logprobs_come_with_every_token", "logprob=1.0"),
    (say(Late), "test_logprobs_of_the_prompt_come_first", "again later"),
    (Rushing, "test_nothing_is_taken_before_start", "health says ready"),
    (Rushing, "test_failed_start_leaves_nothing_running", "health is"),
    (Rushing, "test_stopped_engine_takes_nothing_and_leaves_nothing", "health says ready"),
    (Lazy, "test_started_engine_is_ready", "starting"),
    (Littering, "test_stopped_engine_takes_nothing_and_leaves_nothing", "left 1 threads"),
    (Littering, "test_failed_start_leaves_nothing_running", "left 1 threads"),
    (Abandoning, "test_stop_ends_every_stream", "a stream did not end"),
    *((Unwatched, f"test_{end}_is_noticed", "a stream did not end") for end in ENDS),
    (Once, "test_stop_is_legal_at_any_time", "it has stopped already"),
    (Welcoming, "test_nothing_is_taken_before_start", "did not raise Unavailable"),
    (Leaking, "test_storm_of_cancellations_leaves_the_engine_well", "full"),
    (Confusing, "test_together_equals_alone", "among others, and alone"),
    (ignore("stop_ids"), "test_stop_id_ends_the_text", "with stop id"),
    (ignore("stop"), "test_stop_string_ends_the_text_before_it", "with stop string"),
    (ignore("timeout_s"), "test_request_that_takes_too_long_ends_with_an_error", "s ended with"),
    (ignore("n"), "test_several_answers_are_each_whole", "have not ended"),
    (ignore("sampling"), "test_seeds_decide_the_draws", "seeds all give"),
    (ignore("adapter"), "test_invalid_requests_are_refused_and_do_no_harm", "submitting an adapter"),
    (ignore("logprobs"), "test_logprobs_come_with_every_token", "are for []"),
    (ignore("prompt_logprobs"), "test_logprobs_of_the_prompt_come_first", "are for ()"),
    (Overlong, "test_answer_has_as_many_tokens_as_asked_for", "1 tokens were requested, and 2 were returned"),
    (Patching, "test_invalid_requests_are_refused_and_do_no_harm", "submitting an empty prompt did not raise"),
    (Wandering, "test_seeds_decide_the_draws", "the same seeds give"),
]


@pytest.mark.parametrize(("fault", "name", "finding"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_kit_catches_a_fault(fault: type[Wrapper], name: str, finding: str) -> None:
    class Faulty(ToyKit):
        patience_s = 1.5

        def make_engine(self) -> Engine:
            return fault(super().make_engine())

        def make_broken_engine(self) -> Engine:
            return fault(super().make_broken_engine())

    assert finding in run_test(Faulty, name)


def test_kit_holds_an_engine_that_cannot_do_all_to_refusing_it() -> None:
    for changes in ({"has_choices": False}, {"has_logprobs": False}):
        kit = type("Kit", (ToyKit,), changes)
        found = {name for name in list_tests(kit) if "several" in name or "logprobs_come" in name}
        assert [name for name in sorted(found) if "did not raise InvalidRequest" in run_test(kit, name)]


def test_every_test_of_the_kit_catches_something() -> None:
    assert set(list_tests(ToyKit)) == {name for _, name, _ in FAULTS}
