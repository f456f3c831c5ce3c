"""The tasks of `benchmarks.agent_clis`: what the model writes in each turn, and what has to be there afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

THOUGHT = "<think>\nThe user wants me to look first.\n</think>\n\n"
PATCH = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-the sky is blue\n+the sky is green\n*** End Patch\n"
MCP_CODE = "seven-of-nine"
"""What the tool of the MCP server returns."""


def call(name: str, **arguments: str) -> str:
    """Return a tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True)
class Task:
    """A task for an agent."""

    name: str
    turns: tuple[str, ...]
    """What the model writes: calls of tools, and at last the answer."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The files that have to be there afterwards, with their content."""
    results: tuple[str, ...] = ()
    """Texts that the results of the calls have to contain, as the model is shown them."""
    continues: bool = False
    """Whether it goes on with the session of the task before."""

    @property
    def prompt(self) -> str:
        """What the user says; the mark lets the script find the task."""
        return f"[task {self.name}] Do it."

    @property
    def answer(self) -> str:
        """The last thing that the model writes."""
        return self.turns[-1]

    @property
    def num_calls(self) -> int:
        """The number of tool calls."""
        return sum(turn.count("<tool_call>") for turn in self.turns)


@dataclass(frozen=True)
class Dialect:
    """The tools of an agent."""

    run: Callable[[str], str]
    """Returns the call that runs a shell command."""
    write: Callable[[Path, str, str], str]
    """Returns the call that writes a file of a folder."""
    read: Callable[[Path, str], str]
    """Returns the call that reads a file of a folder."""
    edit: Callable[[Path], str]
    """Returns the call that changes blue to green in ``notes.txt``."""
    mcp: str
    """The call of the tool of the MCP server."""


CODEX = Dialect(
    run=lambda command: call("exec_command", cmd=command),
    write=lambda _, name, text: call("exec_command", cmd=f"printf '%s' '{text}' > {name}"),
    read=lambda _, name: call("exec_command", cmd=f"cat {name}"),
    edit=lambda _: call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}EOF"),
    mcp=call("mcp__codes__find_code", place="door"),
)
OPENCODE = Dialect(
    run=lambda command: call("bash", command=command),
    write=lambda folder, name, text: call("write", filePath=str(folder / name), content=text),
    read=lambda folder, name: call("read", filePath=str(folder / name)),
    edit=lambda folder: call("edit", filePath=str(folder / "notes.txt"), oldString="blue", newString="green"),
    mcp=call("codes_find_code", place="door"),
)


def list_tasks(tools: Dialect, folder: Path) -> list[Task]:
    """Return the tasks for an agent that works in ``folder``, in their order."""
    run = tools.run
    return [
        Task("answer", ("The sky is blue.",)),
        Task("command", (run("echo six times seven"), "It printed its words."), results=("six times seven",)),
        Task(
            "commands",
            (run("echo first one"), run("echo second one"), "Both have run."),
            results=("first one", "second one"),
        ),
        Task(
            "parallel",
            (f"{run('echo left')}\n{run('echo right')}", "Both sides have run."),
            results=("left", "right"),
        ),
        Task(
            "write",
            (tools.write(folder, "notes.txt", "the sky is blue"), "The file is written."),
            files={"notes.txt": "the sky is blue"},
        ),
        Task(
            "edit",
            (tools.read(folder, "notes.txt"), tools.edit(folder), "The file is changed."),
            files={"notes.txt": "the sky is green"},
            results=("the sky is blue",),
        ),
        Task("reasoning", (f"{THOUGHT}{run('echo looked')}", f"{THOUGHT}I have looked."), results=("looked",)),
        Task(
            "failure",
            (run("cat missing.txt"), run("echo instead"), "There is no such file."),
            results=("No such file", "instead"),
        ),
        Task("mcp", (tools.mcp, f"The code is {MCP_CODE}."), results=(MCP_CODE,)),
        Task("resume", (run("echo once more"), "That was the second turn."), results=("once more",), continues=True),
    ]
