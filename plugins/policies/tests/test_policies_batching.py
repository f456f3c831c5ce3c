from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parallax_core.api import BatchingPolicy, QueueView, Request, RequestId, Sampling
from parallax_core.builtin.batching import WorkConserving
from parallax_core.builtin.offers import POLICIES
from parallax_core.engine.head import Head
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.node.policy.guard import BatchingGuard
from parallax_core.node.policy.parse import make_policy
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.toy import Toy
from parallax_policies.batching import Delay, Size, SizeOrDelay

BATCHING = [spec.name for spec in POLICIES if spec.kind == "batching"]
HOLD_S = 0.5


class Answering:
    """A batching policy that gives the answer it is made with, or raises it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def wait_s(self, queue: QueueView) -> float:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def first_step(policy: BatchingPolicy, num_requests: int = 1) -> float:
    """Return when a head begins its first step for requests that come at 0, in steps of a tenth of its limit."""
    head = Head([Toy().open().info], decode, HeadOptions(limits=Limits(max_hold_s=HOLD_S), batching=policy))
    for number in range(num_requests):
        head.accept(
            Request(id=RequestId(str(number)), prompt=(1, 2), max_tokens=3, sampling=Sampling(temperature=0)), 0.0
        )
    for tenth in range(100):
        if head.plan(tenth * HOLD_S / 10) is not None:
            return tenth * HOLD_S / 10
    raise AssertionError("the request was never planned")


def queue(num_ready: int, oldest_wait_s: float = 0.0) -> QueueView:
    return QueueView(num_ready=num_ready, oldest_wait_s=oldest_wait_s, num_in_flight=0)


@pytest.mark.parametrize(
    ("policy", "view", "answer"),
    [
        (WorkConserving(), queue(1), 0),
        (Size(3), queue(2, 100), math.inf),
        (Size(3), queue(3), 0),
        (Delay(2), queue(100, 0.5), 1.5),
        (Delay(2), queue(1, 2.5), 0),
        (SizeOrDelay(3, 2), queue(2, 0.5), 1.5),
        (SizeOrDelay(3, 2), queue(3, 0.5), 0),
        (SizeOrDelay(3, 2), queue(2, 2), 0),
    ],
    ids=str,
)
def test_policy_answers_as_it_says(policy: BatchingPolicy, view: QueueView, answer: float) -> None:
    assert policy.wait_s(view) == answer


@pytest.mark.parametrize("make", [lambda: Size(0), lambda: Delay(-1), lambda: Delay(math.nan), lambda: Delay(math.inf)])
def test_option_that_makes_no_sense_is_refused(make: Callable[[], BatchingPolicy]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


@pytest.mark.parametrize("name", BATCHING)
def test_no_policy_holds_a_step_back_beyond_the_limit(name: str) -> None:
    assert first_step(make_policy(PluginHost.discover(), "batching", name)) <= HOLD_S


def test_delay_is_waited_for_and_size_ends_it() -> None:
    assert first_step(Delay(0.1)) == pytest.approx(0.1)
    assert first_step(SizeOrDelay(2, 0.1)) == pytest.approx(0.1)
    assert first_step(SizeOrDelay(2, 0.1), 2) == 0
    assert first_step(Size(2)) == HOLD_S
    assert first_step(Delay(1000)) == HOLD_S


@pytest.mark.parametrize("answer", [-1.0, math.nan, None, "soon", ValueError("boom")], ids=repr)
def test_policy_that_answers_nonsense_is_reported_once_and_holds_nothing_back(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = BatchingGuard(Answering(answer))
    assert first_step(guard, 3) == 0
    assert guard.wait_s(queue(1)) == 0
    [record] = caplog.records
    assert "Answering" in record.getMessage()


def test_policy_that_never_begins_is_held_to_the_limit() -> None:
    assert first_step(BatchingGuard(Answering(math.inf))) == HOLD_S
