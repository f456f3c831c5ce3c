"""Refuses grammars that cannot be compiled, or take too long for that, in the process that reads a body."""

from __future__ import annotations

import threading

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.grammar import Grammar
from parallax_core.models.grammars import ModelGrammars

LIMIT_S = 0.7
"""Seconds that compiling a grammar may take."""


class GrammarTooLong(InvalidRequest):
    """Compiling a grammar takes too long. It goes on in this process, which should end."""


def check_grammar(grammars: ModelGrammars, grammar: Grammar, field: str) -> None:
    """Compile a grammar and drop it: the head compiles it again, certain that this takes little time.

    Raises:
        InvalidRequest: if it cannot be compiled, naming ``field``.
    """
    grammars.prepare()
    errors: list[Exception] = []
    compiling = threading.Thread(target=_compile, args=(grammars, grammar, errors), daemon=True)
    compiling.start()
    compiling.join(LIMIT_S)
    if compiling.is_alive():
        message = f"'{field}' takes more than {LIMIT_S:g} seconds to compile"
        raise GrammarTooLong(message, field, "make it simpler: fewer alternatives, smaller bounds")
    if errors:
        error = errors[0]
        message = error.message if isinstance(error, InvalidRequest) else f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"'{field}': {message}", field)


def _compile(grammars: ModelGrammars, grammar: Grammar, errors: list[Exception]) -> None:
    try:
        grammars.compile(grammar)
    except Exception as error:  # noqa: BLE001 -- raised again on the thread that waits
        errors.append(error)
