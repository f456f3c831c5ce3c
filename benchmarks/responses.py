"""Do Parallax and vLLM's own server answer `/v1/responses` as OpenAI's reference says?

    python -m benchmarks.responses MODEL_FOLDER --python PYTHON --out benchmarks/results/responses.json

PYTHON is the interpreter of an environment with vLLM. The cases of `benchmarks.responses_cases` are tried on
`parallax serve` and on vLLM's server, with the same model, whose chat template is extended by tools; vLLM keeps
responses and parses tool calls, as it can. Beside each failed case is what was found. The exit code is 1 if a case
fails on Parallax.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.clients import offer_tools
from benchmarks.engine_overhead import Setup
from benchmarks.record import describe_run, write_report
from benchmarks.responses_cases import CASES, PATIENCE_S, Site
from benchmarks.sides import serve

LIMIT = 300
"""The longest message of a failure, in characters."""


def commands(model: Path, python: Path) -> dict[str, tuple[list[str], Mapping[str, str]]]:
    """Return the command of each server, and its environment variables."""
    setup = Setup(model, python, "float32")
    ours = [str(Path(sys.executable).with_name("parallax")), "serve", str(model), "--backend", "mlx"]
    theirs = [*setup.theirs(), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    kept = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    return {"parallax": ([*ours, "--parser", "hermes"], {}), "vllm": (theirs, {**setup.variables(), **kept})}


def try_cases(site: Site) -> dict[str, str]:
    """Return what was wrong with each case that failed."""
    failures = {}
    for name, check in CASES.items():
        try:
            check(site)
        except Exception as error:  # noqa: BLE001 -- whatever a foreign server sends is a finding
            failures[name] = f"{type(error).__name__}: {error}"[:LIMIT]
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all cases on both servers, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of an environment with vLLM")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = offer_tools(options.model, Path(folder))
        for name, (command, variables) in commands(model, options.python.absolute()).items():
            with (
                serve(command, model.name, variables, {}) as side,
                httpx2.Client(base_url=side.target.url, timeout=PATIENCE_S) as http,
            ):
                failures = try_cases(Site(http, model.name))
            found[name] = {"passed": len(CASES) - len(failures), "failures": failures}
    report = {**describe_run(["benchmarks.responses", options.model.name], ("openai",)), "cases": list(CASES), **found}
    print(json.dumps(report, indent=2))
    write_report(options.out, report)
    return 1 if found["parallax"]["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
