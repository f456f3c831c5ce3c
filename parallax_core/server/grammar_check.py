"""Refuses grammars that cannot be compiled, or take too much time or memory for that.

Compiling cannot be interrupted. It is done in a fork of a process that has prepared the vocabulary: a fork takes a
millisecond, and can be killed.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
from contextlib import suppress
from typing import NoReturn

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar, ModelGrammars
from parallax_core.server.memory_limit import limit_memory

LIMIT_S = 0.7
"""Seconds of a processor that compiling a grammar may take."""
MOST_S = 0.9
"""Seconds that it may take by the clock, on a busy machine."""
MOST_MEMORY = 512 * 2**20
"""Bytes of memory that it may take."""
MOST_FILES = 2**16
"""The end of the file descriptors that are closed."""
NICENESS = 5
"""How much less urgent it is than the computation of the model."""
SIMPLER = "make it simpler: fewer alternatives, smaller bounds"
TOO_LONG = f"the grammar takes more than {LIMIT_S:g} seconds to compile"
TOO_LARGE = "the grammar is too large or too deep to be compiled"


def check_grammar(grammars: ModelGrammars, grammar: Grammar) -> float:
    """Compile a grammar and drop it: the head compiles it again, certain that this takes little time.

    For a process with a single thread, since it forks. Returns the seconds of a processor that it took.

    Raises:
        InvalidRequest: if it cannot be compiled; it names ``grammar``.
    """
    grammars.prepare()
    answers, answer = os.pipe()
    child = os.fork()
    if not child:
        _compile(grammars, grammar, answer)
    os.close(answer)
    try:
        is_over = bool(select.select([answers], [], [], MOST_S)[0])
        if not is_over:
            os.kill(child, signal.SIGKILL)
        text = b"".join(iter(lambda: os.read(answers, 2**16), b""))
        _, status, usage = os.wait4(child, 0)
    finally:
        os.close(answers)
    end = os.waitstatus_to_exitcode(status)
    if not is_over or end == -signal.SIGPROF:
        raise InvalidRequest(TOO_LONG, "grammar", SIMPLER)
    if end:
        raise InvalidRequest(TOO_LARGE, "grammar", SIMPLER)
    if text:
        raise InvalidRequest(*json.loads(text))
    return usage.ru_utime + usage.ru_stime


def _compile(grammars: ModelGrammars, grammar: Grammar, answer: int) -> NoReturn:
    """Compile a grammar within limits, write the error if there is one, and end this process."""
    end = 1
    try:
        with suppress(OSError):
            os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _close_others(answer)
        limit_memory(MOST_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            grammars.compile(grammar)
        except InvalidRequest as error:
            os.write(answer, json.dumps([error.message, "grammar", error.hint]).encode())
        end = 0
    finally:
        os._exit(end)


def _close_others(kept: int) -> None:
    """Close all files but one: the other end of a pipe must see the end of the process that was forked."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # also those to which libraries report that memory is spent
        os.dup2(nothing, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, MOST_FILES)
