"""The command ``parallax cluster leave``."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Annotated

import typer

from parallax_cluster.deploy.worker_record import WorkerRecord, find_workers
from parallax_core.api import ParallaxError, UnknownName
from parallax_core.api.cli import new_app

app = new_app()


@app.command()
def leave(
    nodes: Annotated[
        list[str] | None, typer.Argument(metavar="[NODE]...", help="The names of the workers; by default all.")
    ] = None,
) -> None:
    """End workers of this machine, after other nodes have taken over their layers.

    A worker whose layers no other node has goes on until the requests of its pipeline have ended, at most for the
    --drain seconds with which it was started. Requests that have not ended then wait until another worker joins.
    A second `parallax cluster leave` ends workers at once.
    """
    workers = _choose(find_workers(), nodes or [])
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
        print(f"{worker.node} leaves {worker.connect}", flush=True)
    for worker in workers:
        worker.wait_end()
        print(f"{worker.node} has left", flush=True)


def _choose(workers: list[WorkerRecord], names: list[str]) -> list[WorkerRecord]:
    """Return the workers of these names, or all.

    Raises:
        UnknownName: if no worker has one of the names.
        ParallaxError: if none runs.
    """
    if not workers:
        raise ParallaxError(
            "no worker runs here", "`parallax cluster leave` finds the workers that this user started on this machine"
        )
    running = ", ".join(worker.node for worker in workers)
    for name in names:
        if name not in {worker.node for worker in workers}:
            raise UnknownName(f"no worker called {name!r} runs here", f"these run: {running}")
    return [worker for worker in workers if not names or worker.node in names]
