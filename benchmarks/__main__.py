"""Lists the benchmarks that have a result, and runs those that are named, or with ``--missing`` those without.

A result is ``benchmarks/results/NAME.json``, with its commit, command and machine. A run ends after 30 minutes; what it
has found until then is kept in ``build/evidence``, and the next run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import find_model

ROOT = Path(__file__).parents[1]
RESULTS, DRAFTS = ROOT / "benchmarks/results", ROOT / "build/evidence"
LIMIT_S = 1800
PEERS = ROOT / ".venv-peers"
ENGINES = {
    name: ROOT / f"build/engines/{name}-{release}" for name, release in (("vllm", "0.32.0"), ("sglang", "0.5.23"))
}


@dataclass(frozen=True, slots=True)
class Evidence:
    command: str
    """The module and its arguments; ``{model}`` is the real model's folder, and ``{vllm}`` an interpreter with it."""
    needs: str = ""
    """What else it needs, for a person."""


EVIDENCE: dict[str, Evidence] = {
    "peer-torch": Evidence("benchmarks.peers torch --peers {peers} --sglang {sglang}", "a compiler and CMake"),
    "peer-mlx": Evidence("benchmarks.peers mlx"),
    "long-context": Evidence("benchmarks.peers long --peers {peers}", "a compiler and CMake"),
    "peer-gguf": Evidence("benchmarks.peers gguf --peers {peers}", "a compiler and CMake"),
    "even-latency": Evidence("benchmarks.peers even"),
    "start": Evidence("benchmarks.start"),
    "parity-smollm2": Evidence("benchmarks.parity stage --prompts 10 --tokens 32"),
    "parity-torch": Evidence("benchmarks.parity stage --backend torch"),
    "stages": Evidence("benchmarks.parity stages"),
    "families-mlx": Evidence("benchmarks.families --backend mlx"),
    "families-torch": Evidence("benchmarks.families --backend torch"),
    "families-torch-mlx": Evidence("benchmarks.families --backend torch-mlx"),
    "families-mlx-torch": Evidence("benchmarks.families --backend mlx-torch"),
    "families-vllm": Evidence("tests.support.engine_families vllm --python {vllm}"),
    "families-sglang": Evidence("tests.support.engine_families sglang --python {sglang}"),
    "families-widths": Evidence("benchmarks.families --wide"),
    "templates": Evidence("benchmarks.templates"),
    "wire-fuzz": Evidence("tests.unit.wire.damage"),
    "link-fuzz": Evidence("tests.support.link_fuzz"),
    "adapters": Evidence("benchmarks.adapters"),
    "kernels": Evidence("benchmarks.kernels"),
    "arm-kernels": Evidence("plugins.backend_torch.tests.arm_kernels", "a cross compiler and an emulator"),
    "quality": Evidence("benchmarks.quality"),
    "head": Evidence("benchmarks.head"),
    "pipeline": Evidence("benchmarks.pipeline"),
    "hop": Evidence("benchmarks.hop"),
    "placement": Evidence("benchmarks.placement --seconds 780"),
    "prediction": Evidence("benchmarks.prediction"),
    "quotas": Evidence("benchmarks.quotas", "control groups"),
    "helix": Evidence("benchmarks.helix"),
    "simulate": Evidence("benchmarks.simulate"),
    "mixed-engines": Evidence("benchmarks.parity served --python vllm={vllm} --python sglang={sglang}"),
    "clients": Evidence("tests.clients", "npm"),
    "cuda": Evidence("benchmarks.cuda", "a CUDA device"),
    "stage-kills": Evidence("benchmarks.faults kills"),
    "chaos": Evidence("benchmarks.faults sabotage"),
    "soak": Evidence("benchmarks.faults soak"),
    "detection": Evidence("benchmarks.faults detection"),
    "engine-kills": Evidence("benchmarks.faults engine"),
    "rolling-restart": Evidence("benchmarks.faults rolling"),
    "model-switch": Evidence("benchmarks.faults switch"),
    "membership-churn": Evidence("benchmarks.faults nodes"),
    "run-chaos": Evidence("benchmarks.faults lan --logs build/run-chaos", "root, iproute2 and nftables"),
    "edge": Evidence("benchmarks.faults edge"),
    "cancels": Evidence("benchmarks.faults cancels"),
    "strangers": Evidence("benchmarks.faults strangers", "an idle machine"),
    "many-links": Evidence("benchmarks.faults links", "an idle machine"),
    "nat-lab": Evidence("labs.nat_lab", "root, iproute2 and nftables"),
    "joining": Evidence("labs.joining", "root, iproute2 and faketime"),
    "relay-faults": Evidence("labs.relay_faults", "root and iproute2"),
    "lattica-hangs": Evidence("labs.lattica_hangs"),
    "lattica-punching": Evidence("labs.lattica_punching", "root, iproute2 and npm"),
}


def fill(command: str) -> list[str]:
    places = {"peers": str(PEERS)}
    for name, home in ENGINES.items():
        if f"{{{name}}}" in command:
            subprocess.run(["make", f"{home.relative_to(ROOT)}/.stamp"], cwd=ROOT, check=True)  # noqa: S607
        places[name] = str(home / f"engines/{name}/bin/python")
    if "{peers}" in command:
        subprocess.run([sys.executable, "-m", "benchmarks.venvs", str(PEERS)], cwd=ROOT, check=True)
    if "{model}" in command:
        places["model"] = str(find_model())
    return [word.format(**places) for word in command.split()]


def measure(name: str) -> bool:
    draft = DRAFTS / f"{name}.json"
    draft.parent.mkdir(parents=True, exist_ok=True)
    print(f"measuring {name}", flush=True)
    command = [sys.executable, "-m", *fill(EVIDENCE[name].command), "--out", str(draft)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        status = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        print(f"{name} goes on with the next run: half an hour is over")
        return False
    if status == 0 and draft.exists():
        shutil.move(draft, RESULTS / draft.name)
    return status == 0


def show() -> None:
    for name, each in EVIDENCE.items():
        path = RESULTS / f"{name}.json"
        commit = json.loads(path.read_text()).get("commit", "some parts")[:10] if path.exists() else "-"
        print(f"{name:<18} {commit:<10}  {each.command}{f'  (needs {each.needs})' if each.needs else ''}")


def main(arguments: Sequence[str] | None = None) -> int:
    """List or measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="all that have no result")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(EVIDENCE):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    missing = [name for name in EVIDENCE if not (RESULTS / f"{name}.json").exists()]
    names = [*options.names, *(missing if options.missing else ())]
    if not names:
        show()
    return sum(not measure(name) for name in names)


if __name__ == "__main__":
    sys.exit(main())
