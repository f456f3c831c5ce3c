from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from parallax_core.api import Holder, PreemptionPolicy, RequestId
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.node.policy.guard import PreemptionGuard
from parallax_policies.preemption import NewestFirst, NoPreemption


def holder(name: str, priority: float, arrived: float) -> Holder:
    return Holder(id=RequestId(name), priority=priority, arrived=arrived, num_tokens=1)


HOLDERS = [holder("old", 0, 1), holder("idle", 5, 2), holder("idler", 5, 3), holder("new", 0, 4)]


@pytest.mark.parametrize(
    ("policy", "victim"), [(LowestPriority(), "idler"), (NewestFirst(), "new"), (NoPreemption(), None)], ids=str
)
def test_policy_chooses_as_it_says(policy: PreemptionPolicy, victim: str | None) -> None:
    assert policy.choose(HOLDERS) == victim
    assert policy.choose([]) is None


class Answering:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", ["stranger", 3, [], ValueError("boom")], ids=repr)
def test_policy_that_names_nobody_there_is_is_reported_once_and_not_followed(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = PreemptionGuard(Answering(answer))
    assert [guard.choose(HOLDERS), guard.choose(HOLDERS)] == ["idler", "idler"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("answer", ["old", None])
def test_policy_that_names_somebody_or_nobody_is_followed(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert PreemptionGuard(Answering(answer)).choose(HOLDERS) == answer
    assert not caplog.records


def test_policy_is_not_asked_when_there_is_nobody(caplog: pytest.LogCaptureFixture) -> None:
    assert PreemptionGuard(Answering(ValueError("boom"))).choose([]) is None
    assert not caplog.records
