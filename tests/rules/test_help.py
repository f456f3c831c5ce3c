"""Commands import few modules, which keeps them fast; a test of the time would depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MOST_MODULES = 230

BANNED = {
    "asyncio",
    "click",
    "fastapi",
    "huggingface_hub",
    "jinja2",
    "mlx",
    "msgspec",
    "numpy",
    "pluggy",
    "pydantic",
    "rich",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "zmq",
}

OF_SERVERS = {"fastapi", "jinja2", "prometheus_client", "starlette", "tokenizers", "uvicorn"}
"""What only those import that serve clients: it takes as long as all else that a worker imports."""

# Runs the console entry point like an installed script, then prints the imported modules, even if the command exits.
SCRIPT = """
import json, os, sys
from importlib.metadata import entry_points

main = entry_points(group="console_scripts")["parallax"].load()
sys.argv = ["parallax", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""


def list_imports(*arguments: str) -> list[str]:
    """Return the modules imported by ``parallax ARGUMENTS``."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    modules: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return modules


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_imports_nothing_heavy(argument: str) -> None:
    imported = {module.partition(".")[0] for module in list_imports(argument)}
    assert sorted(imported & BANNED) == []


def test_help_imports_no_plugin() -> None:
    imported = list_imports("--help")
    plugins = [m for m in imported if m.startswith(("parallax_backend", "parallax_source", "parallax_core.builtin"))]
    assert plugins == []


def test_help_imports_few_modules() -> None:
    imported = list_imports("--help")
    assert len(imported) <= MOST_MODULES, imported


@pytest.mark.parametrize("command", ["worker", "join"])
def test_worker_imports_nothing_of_servers(command: str) -> None:
    imported = {module.partition(".")[0] for module in list_imports(command, "--help")}
    assert sorted(imported & OF_SERVERS) == []


def test_banned_list_catches_what_a_command_imports() -> None:
    imported = {module.partition(".")[0] for module in list_imports("plugins", "--json")}
    assert "pluggy" in imported & BANNED
