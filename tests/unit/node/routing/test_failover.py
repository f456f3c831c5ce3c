"""How long a request took, whatever its replicas say of that."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Finish, Pause, Request, Timing
from parallax_core.contracts.sample import Sampling
from parallax_core.engine.timing import Timeline
from parallax_core.node.routing.failover import RequestProgress

REQUEST = Request(id=RequestId("r"), prompt=(1, 2, 3), max_tokens=4, sampling=Sampling())


def make_progress(first: float | None, latest: float, moved_s: float = 0.0) -> RequestProgress:
    return RequestProgress(REQUEST, Timeline(10.0, begun=10.0, first=first, latest=latest), moved_s)


def finish(timing: Timing | None) -> Finish:
    return Finish(reason="stop", prompt_tokens=3, output_tokens=2, timing=timing)


def test_time_on_a_replica_that_was_lost_counts_as_queue() -> None:
    timing = Timing(queued_s=1.0, prefill_s=2.0, decode_s=3.0, pauses=(Pause(1.5, 0.5),))
    assert make_progress(None, 16.0).complete(finish(timing)).timing == timing
    moved = make_progress(None, 21.0, moved_s=5.0).complete(finish(timing)).timing
    assert moved == Timing(queued_s=6.0, prefill_s=2.0, decode_s=3.0, pauses=(Pause(6.5, 0.5),))


def test_engine_that_does_not_measure_is_timed_from_outside() -> None:
    assert make_progress(12.0, 15.0).complete(finish(None)).timing == Timing(prefill_s=2.0, decode_s=3.0)


def test_request_whose_client_left_has_its_tokens_and_times() -> None:
    progress = make_progress(None, 10.0)
    for token, now in ((1, 12.0), (2, 15.0)):
        progress.note(Delta(tokens=(token,)), partial(float, now))
    progress.timeline.latest = 15.0  # as the stream notes it
    left = progress.abandon()
    assert (left.reason, left.prompt_tokens, left.output_tokens) == ("aborted", 3, 2)
    assert left.timing == Timing(prefill_s=2.0, decode_s=3.0)


def test_tokens_that_were_delivered_before_the_request_came_are_kept() -> None:
    """A request that continues an answer has to be moved with the whole of it."""
    progress = RequestProgress(replace(REQUEST, delivered=((3, 4),)), Timeline(10.0))
    progress.note(Delta(tokens=(5,)), lambda: 11.0)
    assert progress.delivered == [[3, 4, 5]]
    assert progress.abandon().output_tokens == 3
