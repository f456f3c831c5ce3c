"""Measures what each stage of a split downloads, in bytes, requests and disk space, compared with the whole model.

    python -m benchmarks.layers MODEL --stages 3 --out benchmarks/results/layers.json

MODEL is the folder of a model whose family has an adapter. A hub on loopback serves its files. Each stage fetches into
its own folder, as on its own machine: once from a hub that answers range requests, and once from one that ignores them.
`ratio` is the download of a stage as a share of the whole model; `ideal` is that share if only the tensors of its
layers were sent, and nothing else. The hub runs in the same process on loopback, so seconds compare only with each
other.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_core.api import LayerRange, ModelFolder, SourceContext, silent
from parallax_core.checkpoint.reader import find_locations, read_config
from parallax_core.cluster.placement.partition import split_layers
from parallax_core.models.stage_tensors import StageTensors, choose_tensors
from parallax_core.plugins.host import PluginHost
from parallax_source_hub.source import HubSource
from tests.support.fakehub import FakeHub, Fault

NAME = "bench/model"

Figures = dict[str, Any]


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    files = {path.name: path.read_bytes() for path in options.model.iterdir() if not path.name.startswith(".")}
    stages = split_model(options.model, options.stages)
    runs = {}
    for name, has_ranges in (("ranges", True), ("no ranges", False)):
        with FakeHub() as hub:
            hub.add(NAME, files)
            if not has_ranges:
                hub.faults.append(Fault(".safetensors", ignore_range=True, times=10**9))
            runs[name] = measure_stages(hub, options.model, stages)
    command = ["benchmarks.layers", options.model.name, "--stages", str(options.stages)]
    write_report(options.out, {**describe_run(command, ["huggingface_hub"]), "runs": runs})


def split_model(folder: Path, num_stages: int) -> list[StageTensors]:
    """Return the tensors of each stage of a model."""
    host, config = PluginHost.discover(), read_config(folder)
    whole = choose_tensors(host, config, None)
    assert whole, "no adapter knows the model"
    ranges = split_layers(whole.num_layers, num_stages)
    return [StageTensors(whole.adapter, each, whole.num_layers, whole.is_tied) for each in ranges]


def measure_stages(hub: FakeHub, folder: Path, stages: list[StageTensors]) -> list[Figures]:
    """Fetch the whole model and then each stage, print the figures, and return them."""
    whole = measure(hub, lambda source: source.fetch(NAME, silent))
    figures = [{"layers": f"0-{stages[0].num_layers}", **whole, "ratio": 1.0}]
    for stage in stages:
        found = measure(hub, partial(HubSource.fetch_tensors, name=NAME, is_wanted=stage.wants, progress=silent))
        layers: LayerRange = stage.layers
        ratio, ideal = found["bytes"] / whole["bytes"], weigh(folder, stage) / whole["bytes"]
        figures.append(
            {"layers": f"{layers.start}-{layers.stop}", **found, "ratio": round(ratio, 3), "ideal": round(ideal, 3)}
        )
    for each in figures:
        print(" ".join(f"{name}={value}" for name, value in each.items()), flush=True)
    return figures


def measure(hub: FakeHub, fetch: Callable[[HubSource], ModelFolder]) -> Figures:
    """Fetch into an empty folder; return the bytes and requests the hub served, the bytes on disk, and the seconds."""
    before, num_requests = hub.num_sent, len(hub.requests)
    os.environ |= {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as home:
        begun = time.perf_counter()
        path = fetch(HubSource(SourceContext(folder=Path(home)), pauses_s=())).path
        seconds = time.perf_counter() - begun
        disk = sum(file.stat().st_blocks * 512 for file in path.iterdir())
    requests = len([each for each in hub.requests[num_requests:] if "/resolve/" in each.path])
    return {"bytes": hub.num_sent - before, "requests": requests, "disk": disk, "seconds": round(seconds, 2)}


def weigh(folder: Path, stage: StageTensors) -> int:
    """Return the size of the tensors of a stage, in bytes."""
    places = [place for path in folder.glob("*.safetensors") for place in find_locations(path)]
    return sum(len(place) for place in places if stage.wants(place.name))


if __name__ == "__main__":
    main()
