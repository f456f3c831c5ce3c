"""Compares the greedy tokens of an engine that serves the whole model with those of transformers, in float32.

    python -m benchmarks.engine_parity MODEL_FOLDER --backend vllm --python vllm=PYTHON --out FILE

The engine is a `parallax serve` with HTTP requests; ``--python`` is not needed for an environment that `parallax
engines install` has made. Where the tokens differ, the gap between the two best logits of transformers is reported: two
correct programs may order nearly equal logits differently. Exits with 1 if more than one prompt differs, or one at a
gap of 1e-3 or more. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.margins import ENDS, TOKENS, ask_greedily
from benchmarks.parity import MAX_DIFFERING, MAX_GAP, PROMPTS, Reference, generate_references
from benchmarks.record import describe_run, write_report
from benchmarks.sides import serve


def list_texts(tokenizer: Tokenizer, reference: Reference) -> list[str]:
    """Return the text of each token of transformers up to an end of text, as `ask_greedily` shows those of a server."""
    texts = (tokenizer.decode([token], skip_special_tokens=False) for token in reference.tokens)
    kept = itertools.takewhile(lambda text: text not in ENDS, texts)
    return ["?" if "\ufffd" in text else text for text in kept]


def find_difference(found: Sequence[str], expected: Sequence[str], gaps: Sequence[float]) -> dict[str, Any] | None:
    """Return the place and the gap of the first difference between an engine and transformers."""
    pairs = enumerate(itertools.zip_longest(found, expected))
    at = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    return None if at is None else {"at": at, "gap": gaps[at]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the greedy tokens of an engine with those of transformers.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--backend", required=True, help="the backend whose engine serves the model")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PYTHON", help="as for parallax serve")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help=f"at most {len(PROMPTS)}")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    tokenizer, name = Tokenizer.from_file(str(options.model / "tokenizer.json")), options.model.name
    texts = PROMPTS[: options.prompts]
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    command = [str(Path(sys.executable).with_name("parallax")), "serve", str(options.model), "--dtype", "float32"]
    command += ["--backend", options.backend, "--set", "memory_fraction=0.1"]
    command += [word for python in options.python for word in ("--python", python)]
    command += [word for option in options.option for word in ("--backend-option", option)]
    with serve(command, name, {}, {}) as side:
        answers = [ask_greedily(side.target.url, name, prompt) for prompt in prompts]
    differences = []
    references = generate_references(options.model, prompts, TOKENS)
    for text, answer, reference in zip(texts, answers, references, strict=True):
        found = find_difference(answer.tokens, list_texts(tokenizer, reference), reference.gaps)
        differences += [] if found is None else [{"prompt": text, **found}]
    passed = len(differences) <= MAX_DIFFERING and all(each["gap"] < MAX_GAP for each in differences)
    result: dict[str, Any] = {
        "model": name,
        "backend": options.backend,
        "prompts": len(prompts),
        "tokens": TOKENS,
        "same": len(prompts) - len(differences),
        "differences": differences,
        "passed": passed,
    }
    print(json.dumps(result, indent=2))
    run = describe_run(["benchmarks.engine_parity", name, "--backend", options.backend], ("torch", "transformers"))
    write_report(options.out, {**run, **result})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
