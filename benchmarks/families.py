"""Compares the logits of random models of every family with transformers, for every split, batching and fork.

    PYTHONPATH=plugins/models python -m benchmarks.families --out benchmarks/results/families.json

This is the long form of ``plugins/backend_mlx/tests/test_mlx_families.py``. It runs the whole model and every split in
two; prompts in one piece, and in chunks of one and of five tokens; batches of sequences with different lengths, with
prompts beside decodes; a fork at every length; and forks and truncations below the current length, at every length the
pools allow, where windows have discarded some tokens. Each figure is the largest difference of two log-probabilities as
a share of the largest logit; at most 1e-4 passes. The reference computes in float64. Families already in the report are
not run again. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_backend_mlx.backend import MlxBackend
from tests.support.checkpoints import FAMILIES
from tests.support.families import SPLITS, TOLERANCE, Family, Trial, run_chunks, run_forks, run_ragged, run_returns

LENGTH = 108
"""Tokens of each sequence: enough that windows of 8 discard some, and that a sequence fills seven pages."""
PROMPT = 60
VERSIONS = ("mlx", "mlx-lm", "torch", "transformers")


def try_split(family: Family, cuts: Sequence[int]) -> dict[str, Any]:
    with family.open_chain(cuts) as chain:
        every = range(LENGTH + 1)
        returns: list[int] = []
        runs: dict[str, Callable[[Trial], object]] = {
            "at once": lambda trial: run_chunks(trial, PROMPT, PROMPT),
            "chunks of 5": lambda trial: run_chunks(trial, PROMPT, 5),
            "chunks of 1": lambda trial: run_chunks(trial, PROMPT, 1),
            "ragged": lambda trial: run_ragged(trial, PROMPT),
            "forked at every length": lambda trial: run_forks(trial, LENGTH, every),
            "forked and cut behind the end": lambda trial: returns.append(run_returns(trial, LENGTH, every)),
        }
        errors = {}
        for name, run in runs.items():
            run(trial := Trial(family, chain))
            errors[name] = trial.find_error()
        pools = [[pool.info.kind for pool in pools] for pools in chain.pools]
        return {"pools": pools, "lengths_behind_the_end": returns[0], "errors": errors}


def try_family(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        family = Family(kind, Path(folder), MlxBackend())
        splits = {str(list(cuts)) if cuts else "whole": try_split(family, cuts) for cuts in SPLITS}
    worst = max(error for split in splits.values() for error in split["errors"].values())
    return {"worst": worst, "passed": worst < TOLERANCE, "splits": splits}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the families, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare random models of every family with transformers.")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), help="run only these")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    done: dict[str, Any] = read_report(options.out).get("families", {})
    for kind in options.families:
        if kind not in done:
            done[kind] = try_family(kind)
            write_report(options.out, describe_run(["benchmarks.families"], VERSIONS) | {"families": done})
        found = done[kind]
        print(f"{kind}: {'pass' if found['passed'] else 'FAIL'}, at most {found['worst']:.1e}", flush=True)
    return 0 if all(found["passed"] for found in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
