from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from parallax_cluster.node.coordinator.placement_guard import make_placement
from parallax_cluster.offers import POLICIES as OF_CLUSTER
from parallax_core.api import PolicySpec, QueueView, Ref, UnknownName, hookimpl
from parallax_core.base.errors import BrokenPlugin, UsageError
from parallax_core.builtin.offers import POLICIES
from parallax_core.node.policy.guard import (
    BatchingGuard,
    PolicyGuard,
    PreemptionGuard,
    RoutingGuard,
    SchedulingGuard,
)
from parallax_core.node.policy.parse import make_policy, read_policy
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_policies.batching import Delay, Size, SizeOrDelay


@dataclass(frozen=True)
class Odd:
    """A policy with an option of every kind there may be."""

    word: str = "none"
    is_on: bool = False
    share: float = 0.5

    def wait_s(self, queue: QueueView) -> float:
        return 0.0


class Plain:
    """Not a dataclass."""


class Extra:
    """A plugin module."""

    @hookimpl
    def parallax_register_policies(self) -> list[PolicySpec]:
        return [
            PolicySpec(name=name, kind="batching", summary="s", factory=Ref(f"{__name__}:{factory}"))
            for name, factory in (("odd", "Odd"), ("plain", "Plain"), ("missing", "Missing"))
        ]


@pytest.fixture
def host() -> PluginHost:
    record = PluginRecord(name="extra", distribution="extra", version="1", module=__name__, state="loaded")
    host = PluginHost.discover()
    host.add(record, Extra())
    return host


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("size", Size()),
        ("size:", Size()),
        ("size:size=3", Size(3)),
        (" size : size = 3 ", Size(3)),
        ("delay:delay_s=1", Delay(1.0)),
        ("size-or-delay:size=16,delay_s=0.25", SizeOrDelay(16, 0.25)),
        ("size-or-delay:delay_s=0.25", SizeOrDelay(delay_s=0.25)),
        ("odd:word=7,is_on=true,share=1e-3", Odd("7", is_on=True, share=0.001)),
        ("odd:word=a:b=c", Odd("a:b=c")),
    ],
)
def test_policy_is_made_as_it_is_written(host: PluginHost, text: str, policy: Any) -> None:
    assert read_policy(host, "batching", text) == policy


@pytest.mark.parametrize("spec", [*POLICIES, *OF_CLUSTER], ids=lambda spec: spec.name)
def test_every_policy_of_core_can_be_made_and_is_guarded(host: PluginHost, spec: PolicySpec) -> None:
    if spec.kind == "placement":
        assert isinstance(make_placement(host, spec.name).policy, spec.factory.load())
        return
    made = make_policy(host, spec.kind, spec.name)
    guards = {
        "batching": BatchingGuard,
        "scheduling": SchedulingGuard,
        "preemption": PreemptionGuard,
        "routing": RoutingGuard,
    }
    assert type(made) is guards[spec.kind]
    assert isinstance(made, PolicyGuard)
    assert isinstance(made.policy, spec.factory.load())


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("size:sise=3", "batching policy 'size' has no option 'sise'", "did you mean 'size'?"),
        ("size:x=3", "has no option 'x'", "its options: size (int)"),
        ("work-conserving:size=3", "has no option 'size'", "it has no options"),
        ("size:size", "option 'size' is given without a value", "size=VALUE"),
        ("size:size=1,size=2", "option 'size' is given twice", "once"),
        ("size:size=many", "batching policy 'size': option 'size' is 'many', which is no int", "size (int)"),
        ("size:size=1.5", "option 'size' is '1.5', which is no int", ""),
        ("size:size=", "option 'size' is '', which is no int", ""),
        ("delay:delay_s=soon", "option 'delay_s' is 'soon', which is no float", "delay_s (float)"),
        ("odd:is_on=maybe", "option 'is_on' is 'maybe', which is no bool", ""),
        ("size:size=0", "batching policy 'size': size is 0; it must be at least 1", ""),
        ("delay:delay_s=nan", "delay_s is nan", ""),
        ("delay:delay_s=-1", "delay_s is -1", ""),
    ],
)
def test_policy_that_is_written_wrongly_is_refused(host: PluginHost, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_policy(host, "batching", text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_policy_of_another_kind_is_unknown(host: PluginHost) -> None:
    with pytest.raises(UnknownName, match="no preemption policy named 'size'"):
        make_policy(host, "preemption", "size")
    with pytest.raises(UnknownName) as caught:
        make_policy(host, "preemption", "newest")
    assert "did you mean 'newest-first'?" in caught.value.hint


def test_policy_of_a_plugin_that_cannot_be_loaded_names_the_plugin(host: PluginHost) -> None:
    with pytest.raises(BrokenPlugin, match="'missing' of extra 1 cannot be loaded"):
        make_policy(host, "batching", "missing")
    with pytest.raises(BrokenPlugin, match="'plain' of extra 1 is not a dataclass"):
        make_policy(host, "batching", "plain")
