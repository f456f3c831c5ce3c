"""Hints to install distributions of this project work where no index has them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from parallax_core.cli import pip_hint
from parallax_core.cli.pip_hint import find_origin, localize, localize_here

ROOT = Path(__file__).parents[3]
HINT = (
    "pip install 'torch>=2.13' --index-url https://one.example, then pip install parallax-backend-torch; there is: mlx."
)


@pytest.fixture(autouse=True)
def only_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have core installed, and no plugin."""
    monkeypatch.setattr(pip_hint, "_is_installed", lambda name: name == "parallax-core")


def write_wheel(folder: Path, name: str, *requirements: str) -> Path:
    """Write the part of a wheel that says what it needs."""
    path = folder / f"{name}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        lines = [f"Name: {name}", *(f"Requires-Dist: {each}" for each in requirements)]
        wheel.writestr(f"{name}-0.1.0.dist-info/METADATA", "\n".join(lines))
    return path


def test_hint_names_folders_of_the_clone_that_core_came_from() -> None:
    shown = localize(HINT, ROOT, "/env/bin/python -m pip")
    needed = [
        f"{ROOT}/plugins/{each}"
        for each in (
            "adapters",
            "formats",
            "stage_tools",
            "sampling_torch",
            "chat_requests",
            "api_anthropic",
            "api_embeddings",
            "api_openai",
            "api_responses",
            "api_tokenize",
            "client",
            "batch",
            "chat",
            "grammar_tools",
            "models",
            "cluster",
            "engines",
            "grammars",
            "manage",
            "netcheck",
            "observe",
            "openapi",
            "operate",
            "policies",
            "scaffold",
            "simulate",
            "tokenizers",
            "source_pypi",
            "source_hub",
            "transport_zmq",
            "web",
            "standard",
        )
    ]
    pip, ours = "/env/bin/python -m pip", f"{' '.join(needed)} {ROOT}/plugins/backend_torch"
    there = "--index-url https://one.example"
    assert shown == f"{pip} install 'torch>=2.13' {there}, then {pip} install {ours}; there is: mlx."


def test_hint_names_wheels_beside_that_of_core(tmp_path: Path) -> None:
    core = write_wheel(tmp_path, "parallax_core", "anyio>=4")
    library = write_wheel(tmp_path, "parallax_sampling_torch", "parallax-core<0.2,>=0.1", "torch")
    backend = write_wheel(tmp_path, "parallax_backend_torch", "parallax-core", "parallax-sampling-torch>=0.1", "torch")
    assert localize("x: pip install parallax-backend-torch.", core, "pip") == f"x: pip install {library} {backend}."
    assert localize("pip install 'parallax-core[otel]'", core, "pip") == f"pip install '{core}[otel]'"
    assert localize("pip install --force-reinstall parallax-other", core, "pip").endswith("parallax-other")


def test_hint_stays_where_an_index_has_core_or_it_is_of_something_else() -> None:
    assert localize("pip install parallax-backend-torch", None, "pip") == "pip install parallax-backend-torch"
    assert localize_here("see `parallax serve --help`") == "see `parallax serve --help`"
    assert localize("/other/python -m pip install parallax-core==0.1", ROOT, "pip").startswith("/other/python -m pip")


def test_core_of_these_tests_came_from_a_folder() -> None:
    origin = find_origin()
    assert origin is not None
    assert (origin / "parallax_core").is_dir()
