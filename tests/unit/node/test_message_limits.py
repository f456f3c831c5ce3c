from __future__ import annotations

from typing import ClassVar

from parallax_core.contracts.service_message import ServiceMessage, service_tag
from parallax_core.node.message_limits import MOST_TOLD, TELL_S, MessageLimits


class Slow(ServiceMessage, frozen=True, tag=service_tag("limits", 0)):
    most_per_s: ClassVar[float] = 2.0


class Rare(ServiceMessage, frozen=True, tag=service_tag("limits", 1)):
    most_per_s: ClassVar[float] = 0.1


def test_as_many_messages_come_at_once_as_in_a_second_on_average() -> None:
    limits = MessageLimits()
    assert [limits.take(Slow, 10.0) for _ in range(3)] == [True, True, False]
    assert [limits.take(Slow, 10.5) for _ in range(2)] == [True, False]
    assert [limits.take(Slow, 99.0) for _ in range(3)] == [True, True, False]


def test_kinds_are_counted_apart_and_a_rare_one_may_come_once() -> None:
    limits = MessageLimits()
    assert [limits.take(Rare, 0.0), limits.take(Rare, 9.0), limits.take(Slow, 9.0)] == [True, False, True]
    assert limits.take(Rare, 10.01)


def test_peer_is_told_of_a_kind_once_in_a_while_and_of_so_many_kinds_only() -> None:
    limits = MessageLimits()
    assert [limits.may_tell(7, 0.0), limits.may_tell(7, TELL_S / 2), limits.may_tell(7, TELL_S)] == [True, False, True]
    told = [limits.may_tell(tag, 9.0) for tag in range(MOST_TOLD + 1)]
    assert told == [True] * MOST_TOLD + [False]
