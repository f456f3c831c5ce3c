"""Compares the predicted with the measured speed of a real model on machines with unequal shares of the processor.

    python -m benchmarks.quotas MODEL_FOLDER --out benchmarks/results/quotas.json

``parallax run smollm2-135m`` serves over two or three ``parallax join`` processes, each in a control group of its own
with a quota of processor time (``cpu.cfs_quota_us``, or ``cpu.max``), which the kernel enforces in periods of 10 ms.
Each machine measures itself under its quota, and the coordinator places the layers by what they say. Then a number of
users each send one request after the other; tokens per second and the time per token are compared with what the cost
model predicts for this placement, these profiles and this load. It needs the right to make control groups (root).

The sum of the quotas leaves processor time for the coordinator; where other work takes it, a process gets less than its
quota, and predictions are too fast. A quota is not a slower processor either: a stage that has waited for another one
runs at full speed until the quota of the period is used up, while the benchmark of the profile never waits. So with one
user, whose steps pass one stage at a time, predictions are too slow. ``throttled`` is the share of the periods in which
the quota was used up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from benchmarks.processes import Quota
from benchmarks.record import PARALLAX, describe_run, write_report
from parallax_core.cli.client import Client
from parallax_core.cli.live_cluster import read_live_cluster
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.config.home import models_folder
from parallax_core.contracts.placement import Estimate, PlacedStage, Placement, PlacementProblem, ServingGoal
from parallax_core.contracts.stage import LayerRange
from parallax_core.deploy.cluster import measure_model
from parallax_core.plugins.host import PluginHost

CLUSTERS = ((0.6, 0.3), (0.5, 0.25), (0.4, 0.25, 0.15))
"""The processors of each machine: shares of one."""
MODEL, PATIENCE_S = "smollm2-135m", 240.0
OPTIONS = ("--backend", "mlx", "--dtype", "float32", "--listen", "tcp://127.0.0.1:0", "--port", "0", "--no-local")
ROOM = ("--memory", "0.5")
"""In float32 the model takes 0.54 GB, so that no machine holds it alone."""
PROMPT, OUTPUT, USERS = 64, 32, (1, 4)
WARM_S, LOAD_S = 10.0, 30.0


@contextmanager
def running(private: Path, quotas: Sequence[Quota]) -> Iterator[str]:
    """Run a coordinator, and a machine with each quota, and yield its URL; in the end all are told to end."""
    with ExitStack() as stack:
        command = [PARALLAX, "run", MODEL, *OPTIONS, "--nodes", str(len(quotas)), "--concurrency", str(max(USERS))]
        coordinator = _start(private / "coordinator", command, stack)
        assert coordinator.stdout is not None
        code = coordinator.stdout.readline().split()[-1]
        for rank, quota in enumerate(quotas):
            join = [PARALLAX, "join", "--backend", "mlx", "--no-api", *ROOM, code]
            _start(private / f"machine-{rank}", quota.wrap(join), stack)
        url = coordinator.stdout.readline().split()[1]
        deadline = time.monotonic() + PATIENCE_S
        while not is_ready(Client(url).cluster(), len(quotas)):
            if time.monotonic() > deadline:
                message = "the cluster does not get ready"
                raise TimeoutError(message)
            time.sleep(0.2)
        yield url


def _start(home: Path, command: Sequence[str], stack: ExitStack) -> subprocess.Popen[str]:
    home.mkdir()
    (home / "models").symlink_to(models_folder())
    log = stack.enter_context((home / "log").open("wb"))
    env = {**os.environ, "PARALLAX_HOME": str(home)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_ready(found: Any, num_nodes: int) -> bool:
    """Return whether all nodes have said what they are, and all replicas serve as they are planned."""
    has_all = sum(node["profile"] is not None for node in found["nodes"]) == num_nodes
    ready = bool(found["replicas"]) and all(each["status"] == "ready" for each in found["replicas"])
    return has_all and ready and found["plan"] is not None and found["plan"]["move"] is None


def predict(folder: Path, url: str, users: int) -> tuple[Placement, Estimate]:
    """Return the placement that serves, and its predicted speed with some users."""
    found = Client(url).cluster()
    pipelines = tuple(
        tuple(PlacedStage(stage["node"], LayerRange(*stage["layers"])) for stage in replica["stages"])
        for replica in found["replicas"]
    )
    model = measure_model(PluginHost.prepare(), folder, "float32")
    goal = ServingGoal(prompt_tokens=PROMPT, output_tokens=OUTPUT, concurrency=users)
    problem = PlacementProblem(cluster=read_live_cluster(found, url), model=model, goal=goal)
    return Placement(pipelines), PlacementEstimator(problem).estimate(Placement(pipelines))


class Users:
    """Users who each send one request after the other, with prompts of their own."""

    def __init__(self, url: str, number: int) -> None:
        self._client = openai.OpenAI(base_url=url, api_key="x", max_retries=20, timeout=PATIENCE_S)
        self._first = time.monotonic() + WARM_S
        self._last = self._first + LOAD_S
        self._answers: list[list[float]] = []
        self._numbers = count()
        self._threads = [threading.Thread(target=self._use) for _ in range(number)]

    def measure(self) -> dict[str, float]:
        """Return tokens per second, and seconds to the first token and per further token."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        ttft_s = statistics.fmean(times[1] - times[0] for times in self._answers)
        token_s = statistics.fmean((times[-1] - times[1]) / (OUTPUT - 1) for times in self._answers)
        tokens_per_s = len(self._threads) * OUTPUT / (ttft_s + (OUTPUT - 1) * token_s)
        return {"tokens_per_s": tokens_per_s, "token_s": token_s, "ttft_s": ttft_s}

    def _use(self) -> None:
        while (sent := time.monotonic()) < self._last:
            times = self._ask(sent)
            if sent >= self._first:
                self._answers.append(times)

    def _ask(self, sent: float) -> list[float]:
        """Send a request; return when it was sent, when its first token came, and when it ended."""
        number = next(self._numbers)
        prompt = [(number * 31 + place * 7) % 1000 + 100 for place in range(PROMPT)]
        chunks = self._client.completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=OUTPUT, stream=True, extra_body={"ignore_eos": True}
        )
        times = [sent, *(time.monotonic() for _ in chunks)]
        return [times[0], times[1], times[-1]]


def compare(folder: Path, shares: Sequence[float]) -> dict[str, Any]:
    """Run a cluster of machines with these shares of a processor, and compare predictions with measurements."""
    with ExitStack() as stack:
        private = Path(stack.enter_context(TemporaryDirectory(prefix="quotas-")))
        quotas = [Quota(f"{private.name}-{rank}", share) for rank, share in enumerate(shares)]
        for quota in quotas:
            stack.callback(quota.remove)
        url = stack.enter_context(running(private, quotas))
        loads = {}
        for users in USERS:
            before = [quota.read() for quota in quotas]
            measured = Users(url, users).measure()
            placement, estimate = predict(folder, url, users)
            predicted = {name: getattr(estimate, name) for name in measured}
            loads[str(users)] = {
                "predicted": predicted,
                "measured": measured,
                "errors": {name: round(predicted[name] / measured[name] - 1, 4) for name in measured},
                "throttled": [share_throttled(*pair) for pair in zip(before, [q.read() for q in quotas], strict=True)],
            }
        stages = [[(stage.node, len(stage.layers)) for stage in stages] for stages in placement.pipelines]
    return {"processors": list(shares), "stages": stages, "loads": loads}


def share_throttled(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the share of the periods in which a quota was used up."""
    periods = after["nr_periods"] - before["nr_periods"]
    return round((after["nr_throttled"] - before["nr_throttled"]) / max(1, periods), 3)


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of smollm2-135m")
    parser.add_argument("--clusters", type=int, default=len(CLUSTERS), help="how many clusters to measure")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for shares in CLUSTERS[: options.clusters]:
        rows.append(compare(options.folder, shares))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    loads = [load for row in rows for load in row["loads"].values()]
    errors = {name: [abs(load["errors"][name]) for load in loads] for name in ("tokens_per_s", "token_s", "ttft_s")}
    found = describe_run(["benchmarks.quotas", "--clusters", str(options.clusters)], ["mlx", "pyzmq"]) | {
        "clusters": rows,
        "median_error": {name: round(statistics.median(each), 4) for name, each in errors.items()},
        "worst_error": {name: max(each) for name, each in errors.items()},
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
