"""Do streams survive whatever happens to the machines of `parallax run`, and after what pause?

    python -m benchmarks.run_chaos --out benchmarks/results/run-chaos.json

Four machines in network namespaces (`benchmarks.run_cluster`), the server's own and three that have joined it by a
code, hold a model that none has room for: a random Llama of 12 layers (``tiny``), and SmolLM2. Six clients read streams
without a pause, even ones greedy and odd ones sampled with a seed; a request that is refused with a 503 is sent again.
Every 15 s a fault of a random kind happens (`benchmarks.run_faults.KINDS`), to a machine or between two. Each stream
must be, byte for byte, that of a run in which nothing happened.

The pause of a fault is the longest wait of a stream that begins at most a second before it and before the next one,
also for being admitted. A node is lost without a reason (``lost_healthy_nodes``) if nothing has happened to it, nor to
its link with the server, in the 5 s before. ``before`` and ``after`` are what the cluster holds while it does nothing.

``failures`` lists what should not be; it has to be empty. The streams alone keep two cores busy: the load is printed.

Parts are written to the report as they end, and not run again; more options:

    python -m benchmarks.run_chaos --models tiny --minutes 5 --streams 4        # a short run, printed
    python -m benchmarks.run_chaos --only kill leave --minutes 5                # faults of these kinds only
    python -m benchmarks.run_chaos --only partition --hold 25 --every 45 --minutes 3

    python -m benchmarks.run_chaos --scenario partition leave join-unreachable  # each in a cluster of its own

A scenario is the name of a kind of fault, which then happens ``--times`` times to a cluster that has settled, or one
of `benchmarks.run_scenarios`; the command ends with 1 if one does not pass.

Needs root, `ip netns`, `nft`, `ss` and control groups. The logs of all machines are kept in ``--logs``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from benchmarks.run_cluster import Cluster, running, start
from benchmarks.run_faults import KINDS, Dealer, Fault, inflict
from benchmarks.run_judge import Watch, find_failures, judge, take_stock
from benchmarks.run_models import MODELS
from benchmarks.run_scenarios import SCENARIOS, Lab
from benchmarks.run_streams import Clients
from parallax_core.config.home import models_folder
from tests.support.namespaces import has_namespaces

PARTS = 2
"""Parts of the run with each model."""
MOST_PAUSE_S = {"tiny": 5.0, "smollm2": 10.0}
"""The 95th percentile of the pauses because machines are killed, leave or join is at most this, by model."""
CALM_S = 120.0
"""Seconds within which the cluster is as before, once nothing happens any more."""


def disturb(cluster: Cluster, faults: list[Fault], options: argparse.Namespace, seed: str) -> None:
    """Have faults happen for a time, and note them."""
    rng = random.Random(seed)  # noqa: S311 -- to be the same every time, not to be secret
    dealer = Dealer(cluster, rng, options.only)
    begun = due = time.monotonic()
    while (due := max(due + options.every, time.monotonic())) < begun + options.minutes * 60:
        time.sleep(max(0.0, due - time.monotonic()))
        faults.append(fault := dealer.draw())
        inflict(cluster, fault, options.hold)
        print(f"{time.monotonic() - begun:7.1f} {fault.kind} {' '.join(fault.machines)}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace, seed: str) -> dict[str, Any]:
    """Run a cluster, have faults happen, and return the figures."""
    faults = list[Fault]()
    with clustered(seed, options, seed.split(maxsplit=1)[0]) as cluster:
        ready_s = start(cluster)
        clients, watch = Clients(cluster, options.streams), Watch(cluster)
        clients.learn()
        before = take_stock(cluster)
        watch.start()
        clients.start()
        disturb(cluster, faults, options, seed)
        clients.finish()
        calm_s = settle(cluster)
        answers = clients.ask_again()
        watch.is_over = True
        after = take_stock(cluster)
    found = judge(clients.streams, clients.expected, faults, watch.losses)
    found = {
        "seed": seed,
        "ready_s": round(ready_s, 1),
        "calm_s": calm_s,
        "answers_at_the_end": answers,
        **found,
        "moves": len(watch.moves),
        "load": {"median": sorted(watch.loads)[len(watch.loads) // 2], "most": max(watch.loads)},
        "before": before,
        "after": after,
    }
    failures = find_failures(found, MOST_PAUSE_S[seed.split(maxsplit=1)[0]])
    return {"failures": failures + ([] if answers == "whole" else [f"answer at the end: {answers}"]), **found}


def settle(cluster: Cluster) -> float | None:
    """Wait until all machines are there again and serve; return the seconds that took; None: they do not."""
    try:
        return round(cluster.await_ready(len(cluster.workers) + 1 + cluster.guest.is_running, CALM_S), 1)
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return None


@contextmanager
def clustered(name: str, options: argparse.Namespace, model: str) -> Iterator[Cluster]:
    """Make the machines of a cluster for a model, and keep their logs under a name."""
    models = models_folder().resolve()
    with TemporaryDirectory(prefix="plx-") as place:
        try:
            with running(Path(place), models, MODELS[model](models, Path(place)), options.machines) as cluster:
                yield cluster
        finally:
            if options.logs is not None:
                shutil.copytree(Path(place) / "logs", options.logs / name.replace(" ", "-"), dirs_exist_ok=True)


def try_scenarios(options: argparse.Namespace) -> bool:
    """Run scenarios, print and write what was seen; return whether all of them pass."""
    report = read_report(options.out)
    for name in options.scenario:
        with clustered(name, options, options.models[0]) as cluster:
            lab = Lab(cluster, options.streams, options.times, options.seed)
            try:
                report[name] = SCENARIOS[name](lab)
            except (TimeoutError, RuntimeError, IndexError) as error:  # a scenario that cannot go on
                report[name] = {"passes": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        report[name] |= describe_run(["benchmarks.run_chaos", "--scenario", name], ["torch", "pyzmq"])
        print(name, json.dumps(report[name], indent=2), flush=True)
        write_report(options.out, report)
    return all(report[name]["passes"] for name in options.scenario)


def main() -> None:
    """Run the parts that the report does not have, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--minutes", type=float, default=15.0, help="of each part")
    parser.add_argument("--parts", type=int, default=PARTS, help="with each model")
    parser.add_argument("--every", type=float, default=15.0, metavar="S", help="seconds from one fault to the next")
    parser.add_argument("--hold", type=float, metavar="S", help="seconds that each fault lasts, instead of its kind's")
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS), help="faults of these kinds")
    parser.add_argument("--scenario", nargs="+", default=[], choices=list(SCENARIOS), help="run these instead")
    parser.add_argument("--times", type=int, default=3, help="how often the fault of a scenario happens")
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--seed", default="7")
    parser.add_argument("--logs", type=Path, help="a folder for the logs of the machines")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if os.geteuid() or not has_namespaces():
        parser.error("it needs root and `ip netns`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that machines and namespaces go, too
    if options.scenario:
        sys.exit(not try_scenarios(options))
    report = read_report(options.out)
    for seed in (f"{name} {options.seed} {part}" for name in options.models for part in range(options.parts)):
        if seed not in report:
            report[seed] = measure(options, seed)
            report[seed] |= describe_run(["benchmarks.run_chaos", *sys.argv[1:]], ["torch", "pyzmq"])
            print(seed, json.dumps(report[seed], indent=2), flush=True)
            write_report(options.out, report)
    sys.exit(any(part["failures"] for part in report.values()))


if __name__ == "__main__":
    main()
