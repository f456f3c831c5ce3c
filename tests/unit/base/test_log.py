from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from parallax_core.base.log import VARIABLE, JsonFormatter, choose_format, write_line, writes_json


def write(message: str, *args: object, node: str = "", error: BaseException | None = None) -> dict[str, Any]:
    """Return the object of a record that was logged."""
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("parallax_core.node", logging.WARNING, "file.py", 1, message, args, exc_info)
    line = JsonFormatter(node).format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_record_is_an_object_with_its_named_values() -> None:
    line = write("node joined node=%s pid=%d, %s in %.1f s, 5%%: load=%5.2f", "mini/1", 7, "all", 2.5, 0.25)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "parallax_core.node",
        "message": "node joined node=mini/1 pid=7, all in 2.5 s, 5%: load= 0.25",
        "fields": {"node": "mini/1", "pid": 7, "load": 0.25},
    }


@pytest.mark.parametrize(("value", "shown"), [(float("inf"), "inf"), (["a"], "['a']"), (None, None), (True, True)])
def test_values_that_json_lacks_are_texts(value: object, shown: object) -> None:
    assert write("it has size=%s", value)["fields"] == {"size": shown}


def test_message_with_another_form_has_no_fields() -> None:
    record = logging.makeLogRecord({"msg": "size=%(size)s", "args": {"size": 1}})
    assert json.loads(JsonFormatter().format(record))["fields"] == {}
    assert write("line\nbreak 100% plain")["fields"] == {}


def test_traceback_and_node_are_in_the_object() -> None:
    line = write("it failed", node="mini/1", error=ValueError("broken"))
    assert line["node"] == "mini/1"
    assert line["traceback"] == "ValueError: broken"


def test_processes_that_are_started_inherit_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_LOG_FORMAT", "text")
    choose_format(None)
    assert not writes_json()
    assert write_line("error: full") == "error: full"
    choose_format("json")
    assert writes_json()
    line = json.loads(write_line("error: full", "ERROR"))
    assert (line["message"], line["level"]) == ("error: full", "ERROR")


WARN = """
import warnings
from parallax_core.base import log
log.configure(verbose=False)
warnings.warn("mind the gap")
"""


@pytest.mark.parametrize("is_json", [True, False])
def test_warnings_are_part_of_a_log_that_programs_read(is_json: bool) -> None:
    env = {**os.environ, VARIABLE: "json" if is_json else "text"}
    done = subprocess.run([sys.executable, "-c", WARN], env=env, capture_output=True, text=True, check=True)
    assert "mind the gap" in done.stderr
    if is_json:
        assert [json.loads(line)["level"] for line in done.stderr.splitlines()] == ["WARNING"]
    else:
        assert done.stderr.startswith("<string>")
