"""Checks that agents for the command line work with the server, each with its default settings.

    python -m benchmarks.agent_clis --out benchmarks/results/agent-clis.json

Codex (over `/v1/responses`) and opencode (over `/v1/chat/completions`) do ten tasks each in a folder of their own: they
run commands, write and change files, call a tool of an MCP server, and go on with a session. The server is the real
one, with its tokenizer, chat template, parser of tool calls and routes, on loopback. The model is a script, since none
small enough for this machine does such tasks: an engine that answers each prompt with the next turn of its task. So
this checks the server and the agents, and not what a model makes of them. Checked are the status of every response, the
answer that each agent prints, the files that it leaves, and that each call and its result are in the next prompt.

Claude Code is not run: its package has no licence text, and refers to legal agreements on a web site. Its traffic is
tested by its published protocol. Agents may run any command here without asking: the commands are those of the script.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.agent_tasks import CODEX, OPENCODE, Dialect, Task, list_tasks
from benchmarks.clients import ROOT, make_package
from benchmarks.record import describe_run, write_report
from parallax_core.contracts.engine import Request
from parallax_core.server import run
from parallax_core.server.bind import bind_socket
from tests.unit.server.scripted import ScriptedEngine, ScriptedSite

LENGTH = 1_000_000
"""Tokens of the context: one for each byte."""
LIMIT_S = 180.0
"""Seconds that an agent has for a task."""
MARK = re.compile(r"<user>[^<]*\[task (\w+)\]")
"""The task of a prompt, in a message of the user."""
CALL, RESULT = re.compile(r"\[([\w-]+) [\w.-]+ \{"), re.compile(r"<tool>(.*?)#([\w-]+)<end>", re.DOTALL)
"""A call and a result in a prompt, with their ids; see `tests.unit.server.scripted.TEMPLATE`."""
SIDE_ANSWER = "A title"
"""What the script writes if a prompt is of no task: agents ask for titles of sessions."""
BAD = 400
MCP = [sys.executable, str(ROOT / "benchmarks" / "mcp_codes.py")]
CODEX_CONFIG = """
model = "toy"
model_provider = "parallax"

[model_providers.parallax]
name = "Parallax"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "PARALLAX_KEY"

[mcp_servers.codes]
command = {program}
args = {args}
"""
"""What the how-to guide says, and an MCP server."""


class TaskEngine(ScriptedEngine):
    """Writes the next turn of the task that a prompt is of."""

    def __init__(self, encode: Callable[[str], list[int]], length: int, show: Callable[[tuple[int, ...]], str]) -> None:
        super().__init__(encode, length)
        self._show = show
        self.tasks: dict[str, Task] = {}
        self.prompts: dict[str, str] = {}
        """The last prompt of each task, from its mark on."""

    def choose(self, request: Request) -> str:
        """Return the next turn."""
        text = self._show(request.prompt)
        marks = list(MARK.finditer(text))
        if not marks or "find_code" not in text[: marks[0].start()]:  # prompts of tasks begin with the tools
            return SIDE_ANSWER
        task = self.tasks[marks[-1][1]]
        prompt = self.prompts[task.name] = text[marks[-1].start() :]
        return task.turns[min(prompt.count("<assistant>"), len(task.turns) - 1)]


class AgentSite(ScriptedSite):
    """The server, with the tasks in place of a model."""

    engine: TaskEngine

    def make_script(self, encode: Callable[[str], list[int]], length: int) -> TaskEngine:
        """Return the engine."""
        return TaskEngine(encode, length, self.text.show)


@dataclass
class Spy:
    """Passes requests on, and notes the status of each response, and the text of errors."""

    app: ASGIApp
    responses: list[tuple[str, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.responses.append((scope["path"], status))
            elif status >= BAD:
                self.errors.append(f"{scope['path']}: {message.get('body', b'')[:300].decode()}")
            await send(message)

        await self.app(scope, receive, note)


@asynccontextmanager
async def serving(spy: Spy) -> AsyncIterator[str]:
    """Serve on a socket of loopback, and yield the address."""
    sock = bind_socket("127.0.0.1", 0)
    server = run.Server(uvicorn.Config(spy, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@dataclass(frozen=True)
class Agent:
    """An agent with the settings for one server."""

    program: Path
    home: Path
    url: str

    package = ""
    tools: Dialect = CODEX

    def configure(self) -> None:
        """Write the settings."""
        raise NotImplementedError

    def list_command(self, task: Task) -> list[str]:
        """Return the arguments for a task."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        """The variables besides PATH."""
        folders = {
            name: str(self.home / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
        }
        return {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config"), "PARALLAX_KEY": "any", **folders}

    async def do(self, task: Task, folder: Path) -> tuple[int, str]:
        """Do a task in a folder, and return the status and the output."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            *self.list_command(task),
            cwd=folder,
            env={"PATH": os.environ["PATH"], **self.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return -1, "it did not end"
        return process.returncode or 0, output.decode()


class Codex(Agent):
    """OpenAI's Codex."""

    package = "@openai/codex"
    tools = CODEX

    def configure(self) -> None:
        """Write the settings."""
        (self.home / ".codex").mkdir(parents=True)
        program, *args = MCP
        text = CODEX_CONFIG.format(url=self.url, program=json.dumps(program), args=json.dumps(args))
        (self.home / ".codex" / "config.toml").write_text(text)

    def list_command(self, task: Task) -> list[str]:
        """Return the arguments for a task."""
        resume = ["resume", "--last"] if task.continues else []
        asks = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *resume, *asks, task.prompt]


class OpenCode(Agent):
    """opencode, with the provider for servers that are compatible with OpenAI's chat API."""

    package = "opencode-ai"
    tools = OPENCODE

    def configure(self) -> None:
        """Write the settings."""
        folder = self.home / ".config" / "opencode"
        folder.mkdir(parents=True)
        options = {"baseURL": f"{self.url}/v1", "apiKey": "any"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Parallax", "options": options, "models": {"toy": {}}}
        config = {
            "model": "parallax/toy",
            "provider": {"parallax": provider},
            "mcp": {"codes": {"type": "local", "command": MCP}},
            "autoupdate": False,
        }
        (folder / "opencode.json").write_text(json.dumps(config))

    def list_command(self, task: Task) -> list[str]:
        """Return the arguments for a task."""
        return ["run", *(["--continue"] if task.continues else []), "--auto", task.prompt]

    @property
    def environment(self) -> dict[str, str]:
        """The variables besides PATH; without the network, it cannot fetch its list of models."""
        return {**super().environment, "OPENCODE_DISABLE_MODELS_FETCH": "1"}


AGENTS: dict[str, type[Agent]] = {"codex": Codex, "opencode": OpenCode}


def check(task: Task, folder: Path, done: tuple[int, str], prompt: str) -> list[str]:
    """Return what is wrong after a task, whose last prompt was ``prompt``."""
    status, output = done
    calls = CALL.findall(prompt)
    results = {number: text for text, number in RESULT.findall(prompt)}
    shown = "\n".join(results.values())
    found = {
        f"it exited with {status}: {output[-500:]}": status == 0,
        f"the answer is not printed: {output[-500:]}": task.answer.rpartition("\n")[2] in output,
        f"{len(calls)} calls of {task.num_calls} came back": len(calls) == task.num_calls,
        f"calls {calls} have the results {list(results)}": sorted(calls) == sorted(results)
        and len(set(calls)) == len(calls),
        **{f"no result contains {text!r}: {shown[-500:]}": text in shown for text in task.results},
        **{f"{name} is not as it should be": _read(folder / name) == text for name, text in task.files.items()},
    }
    return [text for text, holds in found.items() if not holds]


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def run_agent(kind: type[Agent], program: Path) -> dict[str, Any]:
    """Have an agent do all tasks, and return the report."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for name in ("model", "home", "work"):
            (place / name).mkdir()
        site = AgentSite(place / "model", length=LENGTH)
        spy, work = Spy(site.http.app), place / "work"
        await site.router.start()
        try:
            async with serving(spy) as url:
                agent = kind(program, place / "home", url)
                agent.configure()
                tasks = list_tasks(kind.tools, work)
                site.engine.tasks = {task.name: task for task in tasks}
                failures = {}
                for task in tasks:
                    done = await agent.do(task, work)
                    if wrong := check(task, work, done, site.engine.prompts.get(task.name, "")):
                        failures[task.name] = wrong
                    print(f"{kind.package} {task.name}: {wrong or 'passed'}", file=sys.stderr)
        finally:
            await site.router.stop()
            await site.app.state.dialects.close()
    return {
        "agent": kind.package,
        "version": read_version(program),
        "tasks": [task.name for task in tasks],
        "passed": len(tasks) - len(failures),
        "failures": failures,
        "requests": count_requests(spy.responses),
        "errors": spy.errors,
    }


def read_version(program: Path) -> str:
    """Return what a program says of its version."""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def count_requests(responses: list[tuple[str, int]]) -> dict[str, int]:
    """Return the number of responses by path and status."""
    names = [f"{path} {status}" for path, status in responses]
    return {name: names.count(name) for name in sorted(set(names))}


def main() -> None:
    """Check, print, and write the report; exit with 1 if a task failed or a response was an error."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    _, folder = make_package("agents", [kind.package for kind in AGENTS.values()])
    programs = folder / "node_modules" / ".bin"
    found = [asyncio.run(run_agent(AGENTS[name], programs / name)) for name in options.agents]
    report = {"agents": found, **describe_run(["benchmarks.agent_clis"], ["fastapi"])}
    print(json.dumps(report, indent=2))
    write_report(options.out, report)
    if any(each["failures"] or each["errors"] for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
