from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.cli import screen
from parallax_core.cli.screen import LastWarning, Screen, watching
from tests.support.terminal import Terminal

PROGRAM = """
import logging, sys
from parallax_core.base import log
from parallax_core.cli.screen import open_display
from parallax_core.plugins.output import claim_output
log.configure(verbose=False)
with claim_output() as output, open_display("run", verbose="-v" in sys.argv) as display:
    display("fetch", 1, 4, "items")
    logging.getLogger().warning("for the log")
    display.tell("for the reader", sys.stderr)
    display.tell("for a program", output)
    display.finish()
print("error: at the end", file=sys.stderr)
"""


def tell(drawn: Screen, line: str) -> None:
    """Have the screen be drawn, then tell a line, below which it is drawn again."""
    drawn._live.refresh()
    drawn.tell(line, sys.stderr)


def test_lines_are_replaced_and_what_is_told_stays_above() -> None:
    with Terminal() as terminal, terminal.open() as stream, Screen(stream) as drawn:
        tell(drawn, "to join: " + "x" * 150)
        drawn.show(["one [red]", "two"])
        tell(drawn, "ready")
        drawn.show(["three", "\x1b[2J", "y" * 150])
    before, after = terminal.text.split("ready\r\n", 1)
    assert f"to join: {'x' * 150}\r\n" in before, "a line to copy is not broken"
    assert "one [red]\r\ntwo" in before
    assert after.startswith("one [red]\r\ntwo"), "they are drawn again below"
    assert f"three\r\n?[2J\r\n{'y' * 120}\r\n{'y' * 30}" in after.rpartition("two")[2]


def test_task_is_shown_until_it_is_done_or_there_are_lines() -> None:
    with Terminal() as terminal, terminal.open() as stream, Screen(stream) as drawn:
        drawn("fetch", 1, 4, "items")
        tell(drawn, "<1>")
        drawn("fetch", 4, 4, "items")
        drawn("load", 1, None, "items")
        tell(drawn, "<2>")
        drawn.show(["serving"])
        tell(drawn, "<3>")
    frames = [terminal.text.partition(f"{mark}\r\n")[2].partition("\r")[0] for mark in ("<1>", "<2>", "<3>")]
    assert frames == ["fetch: 1 of 4", "load: 1", "serving"]


def test_line_for_a_program_goes_to_its_pipe() -> None:
    pipe = io.StringIO()
    with Terminal() as terminal, terminal.open() as stream, Screen(stream) as drawn:
        drawn.tell("ready", pipe)
    assert pipe.getvalue() == "ready\n"
    assert "ready" not in terminal.text


@pytest.mark.parametrize(
    ("options", "settings", "is_drawn"),
    [((), {}, True), (("-v",), {}, False), ((), {"CI": "1"}, False), ((), {"TERM": "dumb"}, False)],
)
def test_terminal_shows_what_is_done_and_a_file_has_the_log(
    options: tuple[str, ...], settings: dict[str, str], is_drawn: bool, tmp_path: Path
) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    beside = str(tmp_path)[:-1]  # the path of the log begins with it, and not with its folder
    env = {**kept, "TERM": "xterm", "HOME": beside, "PARALLAX_HOME": str(tmp_path), **settings}
    with Terminal() as terminal:
        command = [sys.executable, "-c", PROGRAM, *options]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal.theirs, env=env, check=True, text=True)
    log = tmp_path / "log" / "run.log"
    assert ran.stdout == "for a program\n"
    assert log.exists() == is_drawn
    assert ("for the log" in terminal.text) != is_drawn
    assert (f"log: {log}" in terminal.text) == is_drawn
    assert "for the reader\r\n" in terminal.text
    assert terminal.text.endswith("error: at the end\r\n")


def test_path_of_the_log_begins_with_a_tilde_in_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HOME", tmp_path), ("PARALLAX_HOME", tmp_path), ("TERM", "xterm")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CI", raising=False)
    with Terminal() as terminal:
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=terminal.theirs, check=True)
    assert "log: ~/log/run.log" in terminal.text


def test_log_stays_where_it_is_in_a_pipe_and_where_no_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no folder")
    env = {**os.environ, "TERM": "xterm", "PARALLAX_HOME": str(tmp_path)}
    env.pop("CI", None)
    piped = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=env, check=True, text=True)
    assert "WARNING root for the log\nfor the reader\n" in piped.stderr
    with Terminal() as terminal:
        subprocess.run([sys.executable, "-c", PROGRAM], stderr=terminal.theirs, env=env, check=True)
    assert "for the log" in terminal.text


async def test_screen_shows_what_is_looked_at_with_the_last_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LOOK_S", 0.0)
    looks, seen = iter(range(1000)), asyncio.Event()

    async def look() -> list[str]:
        if (number := next(looks)) == 5:
            logging.getLogger("parallax").warning("lost: %s", "a stage")
        if number == 10:
            seen.set()
            raise ValueError("a fault of what is shown")
        return [f"look {number}"]

    with Terminal() as terminal, terminal.open() as stream, Screen(stream) as drawn:
        async with watching(drawn, look):
            await seen.wait()
    assert "look 9\r\n" in terminal.text
    assert " lost: a stage" in terminal.text.rpartition("look 9")[2]


async def test_other_displays_are_not_watched_for() -> None:
    async def look() -> list[str]:
        raise AssertionError

    async with watching(None, look):
        await asyncio.sleep(0)


def test_warning_is_news_for_a_while_and_only_if_its_reason_is_not_shown() -> None:
    now = [1000.0]
    last = LastWarning(lambda: now[0])
    assert list(last.list_news("")) == []
    record = logging.makeLogRecord({"msg": "node is gone: %s", "args": ("too little memory",), "created": 1000.0})
    last.emit(record)
    now[0] += screen.NEWS_S
    last.emit(logging.makeLogRecord({"msg": "no pipeline: what is shown anyway", "created": 1000.0}))
    [line] = last.list_news("no node has joined")
    assert line.endswith(" node is gone: too little memory")
    assert list(last.list_news("it waits: too little memory")) == []
    now[0] += 1
    assert list(last.list_news("")) == []
