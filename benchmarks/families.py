"""Compares the logits of random models of every family with transformers, for every split, batching and fork.

Whole, every split in two, every layer alone, three unequal stages; at once, in chunks, ragged, forked, truncated. A
figure is the largest difference of log-probabilities as a share of the largest logit: at most 1e-4, and equal tokens.
For MLX, settings that the model files of mlx-lm do not read are as in published models; the record names them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, make_parser, read_report, write_report
from benchmarks.widths import WIDE, compare_wide
from parallax_core.api import Backend, Unsupported
from tests.support import families as checks
from tests.support.checkpoints import REGULAR
from tests.support.families import Family, Trial, run_chunks, run_forks, run_greedy, run_ragged, run_returns
from tests.support.mixed_backend import MixedBackend
from tests.support.mlx_backend import BroughtMlx
from tests.support.published import KINDS
from tests.support.torch_backend import TorchBackend

BACKENDS: dict[str, Callable[[], Backend]] = {
    "mlx": BroughtMlx,
    "torch": TorchBackend,
    "torch-mlx": lambda: MixedBackend((TorchBackend(), BroughtMlx())),
    "mlx-torch": lambda: MixedBackend((BroughtMlx(), TorchBackend())),
}
MIXED = (
    *("llama", "qwen3_moe", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next", "qwen3_5", "gemma4_text"),
    *("nemotron_h", "minimax_m3_vl"),
)
"""Model types that are tried on two backends at once, with every kind of border, cache and state that MLX knows."""
LENGTH, PROMPT = 108, 60  # tokens: windows of 8 discard some, and a sequence fills seven pages
LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 33, 64, 95, 107, 108)
VERSIONS = ("mlx", "mlx-lm", "torch", "transformers")


def try_mixed(family: Family, cuts: Sequence[int]) -> dict[str, Any]:
    """Try what depends on what crosses between stages; forks do not."""
    with family.open_chain(cuts, 1e-3) as chain:
        run_ragged(ragged := Trial(family, chain), PROMPT)
        greedy = run_greedy(drawn := Trial(family, chain), 64)
        return {"greedy": greedy, "errors": {"ragged": ragged.find_error(), "64 greedy tokens": drawn.find_error()}}


def try_split(family: Family, cuts: Sequence[int]) -> dict[str, Any]:
    with family.open_chain(cuts, 1e-3) as chain:
        found: list[int] = []
        runs: dict[str, Callable[[Trial], object]] = {
            "at once": lambda trial: run_chunks(trial, PROMPT, PROMPT),
            "chunks of 5": lambda trial: run_chunks(trial, PROMPT, 5),
            "ragged": lambda trial: run_ragged(trial, PROMPT),
            "forked": lambda trial: run_forks(trial, LENGTH, LENGTHS),
            "forked and cut behind the end": lambda trial: found.append(run_returns(trial, LENGTH, LENGTHS)),
            "64 greedy tokens": lambda trial: found.append(run_greedy(trial, 64)),
        }
        errors = {}
        for name, run in runs.items():
            run(trial := Trial(family, chain))
            errors[name] = trial.find_error()
        return {"lengths_behind_the_end": found[0], "greedy": found[1], "errors": errors}


def try_family(kind: str, name: str) -> dict[str, Any]:
    changes = REGULAR.get(kind, {}) if "mlx" in name else {}
    return compare_family(kind, BACKENDS[name](), changes, is_mixed="-" in name) | (changes and {"changes": changes})


def compare_family(kind: str, backend: Backend, changes: dict[str, Any], *, is_mixed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        family = Family(kind, Path(folder), backend, **changes)
        legal, digest = family.legal, family.digest
        cuts = [(), *((cut,) for cut in legal), tuple(legal), (legal[0], legal[-1])]
        cuts = [(legal[len(legal) // 2],), tuple(legal)] if is_mixed else cuts
        refusals = {border.layer: border.obstacle for border in family.borders if border.obstacle}
        refused = {str(cut): family.find_refusal(cut) for cut in refusals}
        try:
            run = try_mixed if is_mixed else try_split
            splits = {str(list(each)) if each else "whole": run(family, each) for each in cuts}
        except Unsupported as error:
            return {"checkpoint": digest, "refused": error.message}
    worst = max(error for split in splits.values() for error in split["errors"].values())
    passed = worst < checks.TOLERANCES.get(kind, 1e-4) and all(split["greedy"] == 64 for split in splits.values())
    passed &= all(why in refused[str(cut)] for cut, why in refusals.items())
    return {"checkpoint": digest, "worst": worst, "passed": passed, "splits": splits, "illegal": refused}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("Compare random models of every family with transformers.")
    parser.add_argument("--backend", choices=BACKENDS, default="mlx")
    parser.add_argument("--families", nargs="+", choices=KINDS, help="run only these")
    parser.add_argument("--wide", action="store_true", help="compare wide layers instead; see `benchmarks.widths`")
    options = parser.parse_args(arguments)
    done: dict[str, Any] = read_report(options.out).get("families", {})
    words = ["--wide"] if options.wide else ["--backend", options.backend]
    for kind in options.families or (WIDE if options.wide else MIXED if "-" in options.backend else KINDS):
        if kind not in done:
            done[kind] = compare_wide(kind) if options.wide else try_family(kind, options.backend)
            write_report(options.out, describe_run(["benchmarks.families", *words], VERSIONS) | {"families": done})
        found = done[kind]
        word = "pass" if found.get("passed") else "refused" if "refused" in found else "FAIL"
        print(kind, word, found.get("refused") or found.get("worst") or found["errors"], flush=True)
    return 0 if all("refused" in found or found["passed"] for found in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
