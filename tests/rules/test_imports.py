"""The import contracts of pyproject.toml hold, and each of them catches its violations."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rules.contractpage import list_modules

ROOT = Path(__file__).parents[2]

VIOLATIONS = [
    ("layers", "parallax_core/base/ids.py", "import parallax_core.contracts.sample"),
    ("layers", "parallax_core/contracts/sample.py", "from parallax_core.config.home import cache_folder"),
    ("layers", "parallax_core/engine/head.py", "from parallax_core.node.pipeline.engine import PipelineEngine"),
    ("layers", "parallax_core/server/app.py", "import parallax_core.cli.serve"),
    ("layers", "parallax_core/newcomer/__init__.py", '"""A package that says nowhere where it belongs."""'),
    ("cluster", "parallax_cluster/placement/estimate.py", "import parallax_cluster.deploy.network"),
    ("api", "parallax_backend_mlx/plugin.py", "from parallax_core.contracts.stage import Row"),
    ("api", "parallax_source_pypi/plugin.py", "import parallax_core.hookspecs"),
    ("api", "parallax_cluster/node/relay/client.py", "from parallax_core.node.peer_watch import PeerWatch"),
    ("api", "parallax_sampling_torch/sampler.py", "import parallax_core.sampling.draw"),
    ("strangers", "parallax_backend_mlx/plugin.py", "import parallax_source_pypi.plugin"),
    ("strangers", "parallax_backend_mlx/plugin.py", "import parallax_sampling_torch.sampler"),
    ("strangers", "parallax_stage_tools/pools.py", "import parallax_sampling_torch.sampler"),
    ("strangers", "parallax_sampling_torch/sampler.py", "import parallax_backend_torch.kernels"),
    ("strangers", "parallax_models/family.py", "def later() -> None:\n    import parallax_backend_torch.api"),
    ("strangers", "parallax_models/blocks/qwen2.py", "import parallax_backend_torch.weights"),
    ("strangers", "parallax_backend_torch/backend.py", "import parallax_models.blocks"),
    ("frameworks", "parallax_core/sampling/draw.py", "import numpy as np"),
    ("frameworks", "parallax_core/node/worker/runtime.py", "def later() -> None:\n    import numpy as np"),
    ("frameworks", "parallax_core/node/pipeline/engine.py", "def later() -> None:\n    import torch"),
    ("network", "parallax_core/builtin/local.py", "import requests"),
    ("http", "parallax_core/node/pipeline/engine.py", "from fastapi import FastAPI"),
    ("http", "parallax_core/cli/serve.py", "import uvicorn"),
    ("hub", "parallax_core/models/catalog.py", "from huggingface_hub import snapshot_download"),
    ("core", "parallax_core/deploy/kinds.py", "def later() -> None:\n    import parallax_cluster.deploy.cluster"),
    ("pure", "parallax_core/engine/head.py", "import time"),
    ("pure", "parallax_cluster/placement/cost_model.py", "import time"),
    ("pure", "parallax_cluster/placement/cost_model.py", "from parallax_core.api.node import WatchedWork"),
    ("pure", "parallax_core/engine/head.py", "from asyncio import sleep"),
]
"""A contract, a file, and a line that breaks the contract when appended to the file."""

MOST_LISTED = 35
"""The most modules of core that the cluster may import besides `parallax_core.api` and its sub-modules."""
VALUES = (
    "parallax_core.base.byte_size",
    "parallax_core.base.errors",
    "parallax_core.base.ids",
    "parallax_core.contracts.",
)
"""Where names of `parallax_core.api` are defined that decisions of the cluster may use."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages and contracts. What was read of files that stay as they are is kept beside it."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in (ROOT / "parallax_core", *ROOT.glob("plugins/*/parallax_*")):
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def appended(path: Path, line: str) -> Iterator[None]:
    """Have a line at the end of a file, which may be new."""
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((before or b"") + f"\n{line}\n".encode())
    try:
        yield
    finally:
        if before is None:
            shutil.rmtree(path.parent)
        else:
            path.write_bytes(before)


def check_imports(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [argument for contract in contracts for argument in ("--contract", contract)]
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", *chosen]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


FIRST = {contract: (contract, path, line) for contract, path, line in reversed(VIOLATIONS)}.values()
"""One of each contract. `make lint` checks that the repository itself keeps them."""


@pytest.mark.parametrize(
    ("contract", "path", "line"),
    [pytest.param(*each, marks=[] if each in FIRST else [pytest.mark.nightly]) for each in VIOLATIONS],
)
def test_imports_that_break_a_contract_are_caught(tree: Path, contract: str, path: str, line: str) -> None:
    with appended(tree / path, line):
        checked = check_imports(tree, contract)
    assert checked.returncode == 1, checked.stdout
    assert "1 broken" in checked.stdout


def test_every_contract_has_a_violation_that_breaks_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["id"] for contract in settings["tool"]["importlinter"]["contracts"]}
    assert contracts == {contract for contract, _, _ in VIOLATIONS}


def test_every_plugin_is_under_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    plugins = {package.name for package in ROOT.glob("plugins/*/parallax_*")}
    assert plugins == set(settings["root_packages"]) - {"parallax_core"}
    independent = next(contract for contract in settings["contracts"] if contract["id"] == "strangers")
    assert plugins == set(independent["modules"])


def read_contract(name: str) -> dict[str, Any]:
    """Return a contract of pyproject.toml."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    found: dict[str, Any] = next(each for each in tools["importlinter"]["contracts"] if each["id"] == name)
    return found


def test_cluster_imports_few_modules_of_core() -> None:
    allowed = [each.partition(" -> ") for each in read_contract("api")["ignore_imports"]]
    listed = [module for owner, _, module in allowed if owner == "parallax_cluster.**"]
    assert not [module for module in listed if "*" in module]
    inside = [module for module in listed if not f"{module}.".startswith("parallax_core.api.")]
    assert len(inside) <= MOST_LISTED


def test_decisions_of_the_cluster_use_values_of_the_api_only() -> None:
    names = {name: module for module, names in list_modules().items() for name in names}
    folder = ROOT / "plugins/cluster"
    parts = [each for each in read_contract("pure")["source_modules"] if each.startswith("parallax_cluster.")]
    places = [part.replace(".", "/") for part in parts]
    files = [path for place in places for pattern in ("/**/*.py", ".py") for path in folder.glob(f"{place}{pattern}")]
    assert len(files) > len(parts)
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    used = {alias.name for node in imports if node.module == "parallax_core.api" for alias in node.names}
    assert {name for name in used if not names[name].startswith(VALUES)} == set()
