"""Simulates the pipelines of a cluster in several processes, which meet to route requests.

What they send each other is pickled. That is safe, since their pipes have no name: no process can write to one but this
one and those that it starts. Nothing that comes from a file or over a network is ever unpickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from parallax_core.api import ArrivalView, Machine, ParallaxError, ReplicaView
from parallax_core.api.cli import UsageError
from parallax_simulate.group import ReplicaGroup
from parallax_simulate.pipeline import SimulatedRequest
from parallax_simulate.replica import ServedPart
from parallax_simulate.run import PipelineSource

MANY_REQUESTS = 5_000
"""Requests from which on a simulation uses several processes by default."""
MOST_PROCESSES = 8
"""The most that it uses by default: they wait for each other whenever a request is routed."""


class ProcessGroup:
    """The pipelines of another process. Views come as tuples, which are faster to send."""

    def __init__(self, connection: Connection, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._connection = connection

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the pipelines."""
        return self._ranks

    def start(self, until: float, *, is_routing: bool) -> None:
        """Tell the other process to advance the time to ``until``."""
        self._send("collect", until, is_routing)

    def collect(self) -> Iterable[ReplicaView]:
        """Return the views that have changed."""
        return map(_read_view, self._receive())

    def submit(
        self, rank: int, request: SimulatedRequest, arrival: ArrivalView, now: float
    ) -> tuple[bool, ReplicaView]:
        """Submit a request; return whether it was accepted, and the view after it."""
        self._send("submit", rank, request, arrival, now)
        is_accepted, view = self._receive()
        return is_accepted, _read_view(view)

    def close(self, rank: int) -> tuple[Sequence[ServedPart], ReplicaView]:
        """Lose a pipeline; return its unfinished requests, and the view after it."""
        self._send("close", rank)
        lost, view = self._receive()
        return lost, _read_view(view)

    def open(self, rank: int) -> None:
        """Open a lost pipeline again."""
        self._send("open", rank)
        self._receive()

    def finish(self) -> tuple[Sequence[ServedPart], Sequence[Sequence[float]]]:
        """Return what has become of the requests, and the seconds that the stages of each pipeline have computed."""
        self._send("finish")
        over, busy_s = self._receive()
        return over, busy_s

    def _send(self, *call: object) -> None:
        try:
            self._connection.send(call)
        except OSError as error:
            raise _explain_end() from error

    def _receive(self) -> Any:  # noqa: ANN401 -- what `_serve` returns for the call
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise _explain_end() from error


@contextlib.contextmanager
def open_groups(source: PipelineSource, num_processes: int) -> Iterator[Sequence[ReplicaGroup]]:
    """Open the pipelines of a simulation in this process and others, of which each gets as many; then end those.

    Raises:
        UsageError: if a policy cannot be sent to another process.
    """
    num_pipelines = len(source.pipelines)
    shares = [range(first, num_pipelines, num_processes) for first in range(min(num_processes, num_pipelines))]
    context = multiprocessing.get_context("spawn")  # a process with threads must not be forked
    groups: list[ReplicaGroup] = []
    with contextlib.ExitStack() as stack:
        for ranks in shares[1:]:
            ours, theirs = context.Pipe()
            stack.enter_context(ours)
            with theirs:
                process = context.Process(target=_serve, args=(theirs, source, ranks), daemon=True)
                _start(process)
            stack.callback(process.join)
            stack.callback(process.terminate)
            groups.append(ProcessGroup(ours, ranks))
        yield [source.make_group(shares[0]), *groups]


def choose_processes(num_requests: int) -> int:
    """Return the number of processes for a simulation: several take a second to start."""
    return min(Machine().count_cores(), MOST_PROCESSES) if num_requests >= MANY_REQUESTS else 1


def _start(process: SpawnProcess) -> None:
    """Start a process and send its arguments; it ignores Ctrl+C, since this process then ends it."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, and so in force during its imports
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:  # all that pickling may raise
        message = f"the simulation cannot be sent to another process: {error}"
        raise UsageError(message, "a policy holds an object that cannot be sent: use --processes 1") from error
    finally:
        signal.signal(signal.SIGINT, handler)


def _serve(connection: Connection, source: PipelineSource, ranks: Sequence[int]) -> None:
    """Make the calls that a `ProcessGroup` sends, until it closes the connection."""
    group = source.make_group(ranks)
    with contextlib.suppress(EOFError, OSError):
        while True:
            match connection.recv():
                case "collect", until, is_routing:
                    group.start(until, is_routing=is_routing)
                    connection.send([_write_view(view) for view in group.collect()])
                case "submit", *arguments:
                    is_accepted, view = group.submit(*arguments)
                    connection.send((is_accepted, _write_view(view)))
                case "close", rank:
                    lost, view = group.close(rank)
                    connection.send((lost, _write_view(view)))
                case "open", rank:
                    group.open(rank)
                    connection.send(None)
                case _:
                    connection.send(group.finish())


def _write_view(view: ReplicaView) -> tuple[Any, ...]:
    """Return what `_read_view` reads; a group knows neither caches nor suspicions."""
    load = view.rank, view.pending_tokens, view.num_requests, view.pending_prompt
    return *load, view.token_s, view.prompt_token_s


def _read_view(values: tuple[Any, ...]) -> ReplicaView:
    rank, pending_tokens, num_requests, pending_prompt, token_s, prompt_token_s = values
    return ReplicaView(
        rank=rank,
        pending_tokens=pending_tokens,
        num_requests=num_requests,
        cached_tokens=0,
        pending_prompt=pending_prompt,
        token_s=token_s,
        prompt_token_s=prompt_token_s,
    )


def _explain_end() -> ParallaxError:
    return ParallaxError("a process of the simulation has ended early", "its output, above, says why")
