"""Compares the grammars of JSON schemas with JSON-Schema-Test-Suite, which the sources of `jsonschema` contain."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from parallax_core.api import BackendFailed, Grammar, InvalidRequest
from parallax_core.models.tokenizer import ModelTokenizer

DRAFT = "json/tests/draft2020-12/"
"""The folder of the tests in the sources."""


def run_suite(folder: Path) -> dict[str, Any]:
    """Return how the tokens of each instance fare under the grammar of its schema, by the tokenizer in ``folder``.

    A schema with a keyword that is not implemented is refused, which is no error; an invalid instance that its grammar
    accepts is one. A valid instance may be rejected: a grammar fixes the order of properties, for example.
    """
    text, counts = ModelTokenizer(folder), Counter[str]()
    wrong: list[str] = []
    for name, case in read_cases():
        try:
            compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(case["schema"])))
        except InvalidRequest:
            counts["schemas refused"] += 1
            counts["instances of refused schemas"] += len(case["tests"])
            continue
        counts["schemas compiled"] += 1
        for test in case["tests"]:
            is_accepted = follows(text, compiled, test["data"])
            counts[f"{'valid' if test['valid'] else 'invalid'} and {'accepted' if is_accepted else 'rejected'}"] += 1
            if is_accepted and not test["valid"]:
                wrong.append(f"{name}: {case['description']}: {test['description']}")
    return {**counts, "wrongly accepted": wrong}


def follows(text: ModelTokenizer, compiled: Any, instance: Any) -> bool:
    """Return whether an instance, written as JSON, is a complete answer under a grammar."""
    matcher = compiled.start()
    try:
        matcher.advance(text.encode(json.dumps(instance, ensure_ascii=False), special=False))
        mask = matcher.find_mask(text.stop_ids, may_end=True)
    except BackendFailed:
        return False
    return any(mask[token // 8] >> token % 8 & 1 for token in text.stop_ids)


def read_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each group of tests, with the name of its file; downloads the sources."""
    with tempfile.TemporaryDirectory() as place:
        wanted = f"jsonschema=={metadata.version('jsonschema')}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", place, wanted], check=True)
        [archive] = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            for member in sources:
                inner = member.name.partition("/")[2]
                if inner.startswith(DRAFT) and inner.endswith(".json") and "/" not in inner.removeprefix(DRAFT):
                    content = sources.extractfile(member)
                    assert content is not None
                    for case in json.load(content):
                        yield Path(inner).name, case
