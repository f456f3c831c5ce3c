from __future__ import annotations

import subprocess
import sys

import pytest

from parallax_core.server.grammar_check import TOO_LARGE, TOO_LONG

SCRIPT = """
import os, time
from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar
from parallax_core.server.grammar_check import check_grammar

class Grammars:
    def prepare(self): pass
    def compile(self, grammar): {body}

try:
    check_grammar(Grammars(), Grammar(kind="json_object"))
except InvalidRequest as error:
    print(error.param, error.message)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child is left")
"""
"""A process of its own: it forks, which a process with threads should not."""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("pass", ""),
        ("raise InvalidRequest('it is bad', 'grammar')", "grammar it is bad"),
        ("raise RecursionError", f"grammar {TOO_LARGE}"),
        ("os.abort()", f"grammar {TOO_LARGE}"),
        ("[None for _ in iter(int, 1)]", f"grammar {TOO_LONG}"),
        ("time.sleep(600)", f"grammar {TOO_LONG}"),
        ("bytes(2**33)", f"grammar {TOO_LARGE}" if sys.platform == "linux" else ""),  # elsewhere memory is not limited
    ],
)
def test_compiler_that_fails_or_does_not_end_is_a_refusal(body: str, words: str) -> None:
    command = [sys.executable, "-c", SCRIPT.replace("{body}", body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [*([words] if words else []), "no child is left"]
    assert done.stderr == ""
