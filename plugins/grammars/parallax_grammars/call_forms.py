"""The answer grammar for a parser that describes its calls instead of writing a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parallax_core.api import AllowedAnswers, CallForm
from parallax_grammars.json_calls import make_call_schema

OTHER = r"/[^{\[ \n](.|\n)*/"
"""An answer that does not begin as a call, if calls have no mark before them."""


class CallFormWriter:
    """Writes grammars from a `CallForm`; see `GrammarWriter`."""

    def __init__(self, form: CallForm) -> None:
        self._form = form

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """See `GrammarWriter.write_grammar`."""
        form = self._form

        def write(marks: Sequence[str]) -> str:
            return " ".join(f"space {allowed.find_special(mark) or json.dumps(mark)}" for mark in marks)

        many = f"({write(form.between)} space call){{0,{allowed.most_calls - 1}}}" if allowed.most_calls > 1 else ""
        lines = [
            f"calls: {write(form.opening)} space call {many} {write(form.end)}",
            "space: /[ \\n]{1,4}/?",
            f"call: %json {json.dumps(make_call_schema(allowed.tools, form.arguments))}",
        ]
        if allowed.must_call or allowed.answer:
            calls = f"{write([form.begin] if form.begin else [])} calls"
            lines += ["start: " + (calls if allowed.must_call else f"space answer | {calls}"), allowed.answer]
        elif form.begin:
            lines += _write_begin(form.begin, allowed.find_special(form.begin))
        else:
            lines += ["start: OTHER? | calls", f"OTHER: {OTHER}"]
        return "\n".join(lines)


def _write_begin(mark: str, special: str) -> list[str]:
    """Return the rules of text that may go on with calls after a mark."""
    inner = re.escape(mark).replace("/", r"\/")
    lines = [f"FREE: /(.|\\n)*/ & ~/(.|\\n)*{inner}(.|\\n)*/"]
    if special:
        return [*lines, f"start: FREE | FREE {special} calls"]
    return [*lines, f"BEGIN: FREE {json.dumps(mark)}", "start: FREE | BEGIN calls"]
