from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from typer.testing import CliRunner

from parallax_core.api import ParallaxError
from parallax_core.api.cli import PluginHost, UsageError
from parallax_manage.plugins import app
from parallax_scaffold import scaffold
from parallax_scaffold.scaffold import KINDS, Project, make_project, read_kind, read_like, render_project, write_project
from tests.conformance.example import EXAMPLES, run_pytest

SLOW = {"transport"}
"""What is not run here, because it is what an example is, whose own tests are run elsewhere."""


def write(kind: str, folder: Path, name: str = "my_thing") -> Path:
    return write_project(make_project(kind, name), folder)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SLOW])
def test_new_package_passes_its_own_tests(kind: str, tmp_path: Path) -> None:
    ran = run_pytest(write(kind, tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


def test_new_transport_is_that_of_the_example() -> None:
    for path, text in render_project(Project(kind="transport", name="tcp")):
        if path.suffix == ".py" and path.name != "__init__.py":
            example = (EXAMPLES["transport-tcp"] / path).read_text(encoding="utf-8")
            assert text.split() == example.split(), path


def make_like(folder: Path, family: str = "qwen3_moe") -> Project:
    """Return a project that begins as a family, for models of the architecture Mine."""
    config = folder / "config.json"
    config.write_text('{"architectures": ["MineForCausalLM"]}')
    return replace(make_project("model", "mine"), like=read_like(PluginHost.prepare(), family, config))


def test_new_family_begins_as_another(tmp_path: Path) -> None:
    files = {str(path): text for path, text in render_project(make_like(tmp_path))}
    assert files["tests/config.json"] == (tmp_path / "config.json").read_text()
    assert 'Ref("parallax_models.qwen3_moe:ADAPTER")' in files["parallax_model_mine/adapter.py"]
    assert 'architectures=("MineForCausalLM",)' in files["parallax_model_mine/plugin.py"]
    assert "blocks" not in files["parallax_model_mine/plugin.py"]
    assert "parallax-models" in tomllib.loads(files["pyproject.toml"])["project"]["dependencies"]
    place = write_project(make_like(tmp_path), tmp_path / "new")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--line-length=120"]
    ran = subprocess.run([*ruff, "."], cwd=place, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_new_family_says_of_the_rest_what_the_other_says(tmp_path: Path) -> None:
    place = write_project(make_like(tmp_path, "gemma4"), tmp_path / "new")
    adapter = runpy.run_path(str(place / "parallax_model_mine/adapter.py"))["ADAPTER"]
    assert adapter.find_part("model.embed_tokens_per_layer.weight") == "every"
    assert adapter.is_tied


@pytest.mark.parametrize(("family", "named"), [("nobody", "[]"), ("llama", "7"), ("llama", '["a b"]'), ("llama", "[]")])
def test_family_or_config_that_is_not_there_is_refused(family: str, named: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(f'{{"architectures": {named}}}')
    for path in (config, None, tmp_path / "none.json"):
        with pytest.raises(UsageError):
            read_like(PluginHost.prepare(), family, path)
    ran = CliRunner().invoke(app, ["new", "policy", "mine", "--like", "llama", "--folder", str(tmp_path / "new")])
    assert isinstance(ran.exception, UsageError)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_new_package_is_formatted_and_clean(kind: str, tmp_path: Path) -> None:
    folder = write(kind, tmp_path)
    ruff = [sys.executable, "-m", "ruff"]
    chosen = ["--isolated", "--no-cache", "--line-length=120"]
    checks = [[*ruff, "format", "--check", *chosen, "."], [*ruff, "check", "--select=E,F,W,I,B,UP", *chosen, "."]]
    for command in checks:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


def test_no_name_makes_a_package_that_is_no_python(tmp_path: Path) -> None:
    for kind in KINDS:
        for name in ("none", "any", "path", "class", "queue-view", "test", kind, "a" * 40):
            write(kind, tmp_path, name)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F", "."]
    ran = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_new_package_keeps_to_the_rules_for_plugins(kind: str) -> None:
    files = dict(render_project(Project(kind=kind, name="mine")))
    package = f"parallax_{kind}_mine"
    assert PurePosixPath(package, "plugin.py") in files
    assert not any(path.suffix == ".j2" or "package" in path.parts for path in files)
    for path, text in files.items():
        assert "{{" not in text
        if path.parts[0] == package:
            assert text.count("parallax_core") == text.count("parallax_core.api"), path


@pytest.mark.parametrize("written", ["My_Thing", "my.thing", "MY--thing", "my-thing"])
def test_name_is_spelled_in_one_way(written: str) -> None:
    project = make_project("policy", written)
    assert (project.name, project.distribution) == ("my-thing", "parallax-policy-my-thing")
    assert (project.package, project.stem) == ("parallax_policy_my_thing", "MyThing")


@pytest.mark.parametrize("written", ["", "-", "a b", "../up", "9lives", "größe", "x" * 41, "a/b", "-x", "x-", "a\n"])
def test_name_that_cannot_be_installed_is_refused(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_project("policy", written)
    assert repr(written) in caught.value.message
    assert caught.value.hint


def test_name_of_an_installed_distribution_is_refused() -> None:
    with pytest.raises(UsageError, match=r"parallax-backend-mlx .* is installed already"):
        make_project("backend", "MLX")


def test_kind_without_a_template_is_refused() -> None:
    with pytest.raises(UsageError, match="'kernel'") as caught:
        read_kind("kernel")
    assert all(kind in caught.value.hint for kind in KINDS)


def test_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "parallax-policy-mine"
    place.mkdir()
    (place / "notes").write_text("mine")
    with pytest.raises(ParallaxError, match="exists already") as caught:
        write("policy", tmp_path, "mine")
    assert "--folder" in caught.value.hint
    assert [path.name for path in place.iterdir()] == ["notes"]


def test_file_in_the_way_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((ParallaxError, OSError)):
        write("policy", tmp_path / "file")


def test_command_says_what_comes_next(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["new", "policy", "mine", "--folder", str(tmp_path / "new")])
    assert ran.exit_code == 0, ran.output
    place = tmp_path / "new" / "parallax-policy-mine"
    assert f"wrote {place}" in ran.output
    assert "pip install -e '.[test]'" in ran.output
    assert (place / "pyproject.toml").is_file()


def test_command_line_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from parallax_core.cli import main; main()", "plugins", "new", "nothing", "x"]
    ran = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "error: there is no template for 'nothing'" in ran.stderr
    assert "hint: choose one of: backend" in ran.stderr


def test_new_package_works_with_this_minor_version_of_core_and_no_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaffold, "version", lambda _: "3.9.2")
    facts = scaffold.describe_project(Project(kind="backend", name="thing"))
    assert facts["core"] == "parallax-core>=3.9,<3.10"
    assert facts["extra"] == "parallax-core[testing]>=3.9,<3.10"
