"""Each part of the tree has a budget of lines; raising one needs an ADR that says what was deleted for it.

A budget is a little above what there is: lower it with the lines.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGETS = {
    "parallax_core": 38_650,
    "parallax_core/testing": 11_150,
    "tests": 80_000,
    "docs/examples": 1_610,
    "benchmarks": 8_000,
    "labs": 2_500,
    "plugins/adapters": 4_200,
    "plugins/api_anthropic": 2_400,
    "plugins/api_embeddings": 600,
    "plugins/api_openai": 2_330,
    "plugins/api_responses": 5_950,
    "plugins/api_tokenize": 500,
    "plugins/backend_mlx": 12_090,
    "plugins/backend_sglang": 5_100,
    "plugins/backend_torch": 15_640,
    "plugins/backend_vllm": 4_040,
    "plugins/batch": 900,
    "plugins/bench": 1_800,
    "plugins/chat": 700,
    "plugins/chat_requests": 2_060,
    "plugins/client": 600,
    "plugins/cluster": 43_590,
    "plugins/engines": 3_310,
    "plugins/formats": 2_840,
    "plugins/grammar_tools": 300,
    "plugins/grammars": 3_260,
    "plugins/manage": 1_120,
    "plugins/models": 10_310,
    "plugins/netcheck": 1_000,
    "plugins/observe": 1_630,
    "plugins/openapi": 550,
    "plugins/operate": 2_020,
    "plugins/policies": 800,
    "plugins/quantize": 2_910,
    "plugins/sampling_torch": 1_500,
    "plugins/scaffold": 410,
    "plugins/server_gradient": 1_000,
    "plugins/server_ollama": 1_400,
    "plugins/simulate": 2_800,
    "plugins/source_hub": 4_010,
    "plugins/source_pypi": 4_260,
    "plugins/stage_tools": 680,
    "plugins/tokenizers": 1_490,
    "plugins/transport_lattica": 3_100,
    "plugins/transport_zmq": 8_000,
    "plugins/web": 1_900,
}
"""Lines of Python by folder; a folder within another counts apart."""

FAMILIES = "plugins/models/parallax_models/"
MOST_FAMILY_LINES = 4_500
"""Of the adapters and blocks of all families together."""
BESIDE_FAMILIES = ("api.py", "defaults.py", "families.py", "plugin.py")
"""Modules beside the adapters that belong to no family."""


def list_files() -> list[str]:
    """Return the Python files that git has."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in found if (ROOT / name).exists()]


def find_part(name: str) -> str:
    """Return the part of the tree that a file belongs to: the longest folder that has a budget."""
    return max((part for part in BUDGETS if name.startswith(f"{part}/")), key=len, default="")


def count_lines() -> dict[str, int]:
    """Return the lines of each part."""
    found = dict.fromkeys(BUDGETS, 0)
    for name in list_files():
        if part := find_part(name):
            found[part] += len((ROOT / name).read_text(encoding="utf-8").splitlines())
    return found


@pytest.mark.parametrize("part", BUDGETS)
def test_part_stays_within_its_budget(part: str) -> None:
    lines = count_lines()[part]
    assert lines <= BUDGETS[part], f"{part} has {lines} lines: delete some, or say in an ADR what was deleted"


def test_every_folder_has_a_budget_but_distributions_that_are_new() -> None:
    folders = {name.partition("/")[0] for name in list_files() if "/" in name and not find_part(name)}
    assert folders <= {"docs", "plugins"}


def test_adapters_and_blocks_of_all_families_stay_within_their_budget() -> None:
    own = [name.removeprefix(FAMILIES) for name in list_files() if name.startswith(FAMILIES)]
    names = [name for name in own if "/" not in name or name.startswith("blocks/")]
    assert {"weights.py", "llama.py", "blocks/gemma4.py", *BESIDE_FAMILIES} <= set(names)
    counted = [ROOT / FAMILIES / name for name in names if name not in BESIDE_FAMILIES]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in counted) <= MOST_FAMILY_LINES
