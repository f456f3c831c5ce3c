"""Compares the predicted with the measured speed of a real model on machines with unequal shares of the processor.

    python -m benchmarks.quotas --out benchmarks/results/quotas.json

``parallax run smollm2-135m`` serves over two or three ``parallax join`` processes, each in a control group of its own
with a quota of processor time, which the kernel enforces in periods of 10 ms. Each machine measures itself under its
quota, and the coordinator places the layers by what they say. Then a number of users each send one request after the
other; tokens per second and the time per token are compared with what the cost model predicts for this placement, these
profiles and this load. It needs the right to make control groups (root).

The sum of the quotas leaves processor time for the coordinator; where other work takes it, a process gets less than its
quota, and predictions are too fast. A quota is not a slower processor either: a stage that has waited for another one
runs at full speed until the quota of the period is used up, while the benchmark of the profile never waits. So with one
user, whose steps pass one stage at a time, predictions are too slow.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from benchmarks.faults.machines import is_calm
from benchmarks.faults.run import wait_until
from benchmarks.processes import Quota
from benchmarks.record import describe_run, find_model, make_parser, write_report
from benchmarks.servers import PATIENCE_S, cluster, parallax, read_ready, running
from parallax_cluster.cli.live_cluster import read_live_cluster
from parallax_cluster.deploy.weight_size import measure_model
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.config.home import models_folder
from parallax_core.contracts.placement import Estimate, PlacedStage, Placement, PlacementProblem, ServingGoal
from parallax_core.contracts.stage import LayerRange
from parallax_core.plugins.host import PluginHost

CLUSTERS = ((0.6, 0.3), (0.5, 0.25), (0.4, 0.25, 0.15))
"""The processors of each machine: shares of one."""
MODEL, ROOM = "smollm2-135m", ("--memory", "0.5")
"""In float32 the model takes 0.54 GB, so that no machine holds it alone."""
OPTIONS = ("--backend", "mlx", "--dtype", "float32", "--listen", "tcp://127.0.0.1:0", "--port", "0", "--no-local")
PROMPT, OUTPUT, USERS = 64, 32, (1, 4)
WARM_S, LOAD_S = 10.0, 30.0


def start(private: Path, quotas: Sequence[Quota], stack: ExitStack) -> str:
    homes = [private / f"home-{rank}" for rank in range(len(quotas) + 1)]
    for home in homes:
        home.mkdir()
        (home / "models").symlink_to(models_folder())
    words = ("run", MODEL, *OPTIONS, "--nodes", str(len(quotas)), "--concurrency", str(max(USERS)))
    coordinator = stack.enter_context(running(parallax(*words), homes[-1]))
    code = coordinator.await_line("parallax join ")[1].split()[2]
    for home, quota in zip(homes, quotas, strict=False):
        join = quota.wrap(parallax("join", "--backend", "mlx", "--no-api", *ROOM, code))
        stack.enter_context(running(join, home))
    url, _ = read_ready(coordinator)
    wait_until(lambda: is_calm(cluster(url), len(quotas)), PATIENCE_S, "the cluster does not get ready")
    return url


def predict(url: str, users: int) -> tuple[Placement, Estimate]:
    found = cluster(url)
    pipelines = tuple(
        tuple(PlacedStage(stage["node"], LayerRange(*stage["layers"])) for stage in replica["stages"])
        for replica in found["replicas"]
    )
    model = measure_model(PluginHost.prepare(), find_model(), "float32")
    goal = ServingGoal(prompt_tokens=PROMPT, output_tokens=OUTPUT, concurrency=users)
    problem = PlacementProblem(cluster=read_live_cluster(found, url), model=model, goal=goal)
    return Placement(pipelines), PlacementEstimator(problem).estimate(Placement(pipelines))


def measure(url: str, users: int) -> dict[str, float]:
    """Return tokens per second, and seconds to the first and per further token, of users with prompts of their own."""
    client = openai.OpenAI(base_url=url, api_key="x", max_retries=20, timeout=PATIENCE_S)
    first, answers, numbers = time.monotonic() + WARM_S, list[tuple[float, float, float]](), count()

    def use() -> None:
        while (sent := time.monotonic()) < first + LOAD_S:
            number = next(numbers)
            prompt = [(number * 31 + place * 7) % 1000 + 100 for place in range(PROMPT)]
            common: dict[str, Any] = {"temperature": 0, "max_tokens": OUTPUT, "extra_body": {"ignore_eos": True}}
            chunks = client.completions.create(model=MODEL, prompt=prompt, stream=True, **common)
            times = [time.monotonic() for _ in chunks]
            if sent >= first:
                answers.append((sent, times[0], times[-1]))

    threads = [threading.Thread(target=use) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ttft_s = statistics.fmean(begun - sent for sent, begun, _ in answers)
    token_s = statistics.fmean((ended - begun) / (OUTPUT - 1) for _, begun, ended in answers)
    return {"tokens_per_s": users * OUTPUT / (ttft_s + (OUTPUT - 1) * token_s), "token_s": token_s, "ttft_s": ttft_s}


def compare(shares: Sequence[float]) -> dict[str, Any]:
    """Run a cluster of machines with these shares of a processor, and compare predictions with measurements."""
    with ExitStack() as stack:
        private = Path(stack.enter_context(TemporaryDirectory(prefix="quotas-")))
        quotas = [Quota(f"{private.name}-{rank}", share) for rank, share in enumerate(shares)]
        for quota in quotas:
            stack.callback(quota.remove)
        url, loads = start(private, quotas, stack), {}
        for users in USERS:
            measured = measure(url, users)
            placement, estimate = predict(url, users)
            predicted = {name: getattr(estimate, name) for name in measured}
            errors = {name: round(predicted[name] / measured[name] - 1, 4) for name in measured}
            loads[str(users)] = {"predicted": predicted, "measured": measured, "errors": errors}
        stages = [[(stage.node, len(stage.layers)) for stage in stages] for stages in placement.pipelines]
    return {"processors": list(shares), "stages": stages, "loads": loads}


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--clusters", type=int, default=len(CLUSTERS), help="how many clusters to measure")
    options = parser.parse_args()
    find_model()
    rows = []
    for shares in CLUSTERS[: options.clusters]:
        rows.append(compare(shares))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    loads = [load for row in rows for load in row["loads"].values()]
    errors = {name: [abs(load["errors"][name]) for load in loads] for name in ("tokens_per_s", "token_s", "ttft_s")}
    found = describe_run(["benchmarks.quotas", "--clusters", str(options.clusters)], ["mlx", "pyzmq"]) | {
        "clusters": rows,
        "median_error": {name: round(statistics.median(each), 4) for name, each in errors.items()},
        "worst_error": {name: max(each) for name, each in errors.items()},
    }
    write_report(options.out, found)


if __name__ == "__main__":
    main()
