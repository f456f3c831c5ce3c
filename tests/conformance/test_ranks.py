"""Which backend runs a model where several could, and nobody has named one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from parallax_backend_mlx import plugin as mlx
from parallax_backend_mlx.probe import FASTER
from parallax_backend_torch import plugin as torch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("system", "best"), [("linux", "torch"), ("darwin", "mlx")])
def test_best_backend_is_mlx_on_a_mac_and_torch_elsewhere(
    monkeypatch: pytest.MonkeyPatch, system: str, best: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    specs = [*mlx.parallax_register_backends(), *torch.parallax_register_backends()]
    assert max(specs, key=lambda spec: spec.rank).name == best


def test_torch_of_the_readme_is_the_one_that_make_installs() -> None:
    pins = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"install (torch\S*)", (ROOT / "README.md").read_text(encoding="utf-8")) == pins


@pytest.mark.parametrize("place", ["docs/how-to/backends.md", ""])
def test_torch_that_is_advised_is_the_one_the_backend_takes(place: str) -> None:
    project = tomllib.loads((ROOT / "plugins/backend_torch/pyproject.toml").read_text(encoding="utf-8"))
    [wanted] = [each for each in project["project"]["dependencies"] if each.startswith("torch")]
    text = (ROOT / place).read_text(encoding="utf-8") if place else FASTER
    assert set(re.findall(r"install '(torch[^']+)'", text)) == {wanted}
