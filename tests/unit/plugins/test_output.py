"""Standard output belongs to the command, whoever else prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import pytest

from parallax_core.plugins.output import claim_output, divert_output


def make_noise() -> None:
    print("noise")
    os.write(1, b"noise below\n")


def test_claimed_output_has_what_the_command_says_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with claim_output() as output:
        make_noise()
        print("ready", file=output, flush=True)
        with divert_output():
            make_noise()
        make_noise()
        print("again", file=output)
    print("after", flush=True)
    os.write(1, b"after below\n")
    out, err = capfd.readouterr()
    assert out.splitlines() == ["before", "ready", "again", "after", "after below"]
    assert sorted(err.splitlines()) == ["noise"] * 3 + ["noise below"] * 3


def test_output_that_is_kept_in_memory_is_claimed(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as memory, claim_output() as output:
        print("noise")
        print("ready", file=output)
    assert memory.getvalue() == "ready\n"
    assert capfd.readouterr().err == "noise\n"


def test_no_output_at_all_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with claim_output() as output:
        print("lost", file=output)
    assert repr(sys.stdout) == "None"
