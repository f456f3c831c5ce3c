"""What a library of grammars uses."""

from parallax_core.base.files import read_object
from parallax_core.contracts.grammar import AskedAnswer, Grammar, GrammarCheck, GrammarKind, WrittenGrammar

__all__ = [
    "AskedAnswer",
    "Grammar",
    "GrammarCheck",
    "GrammarKind",
    "WrittenGrammar",
    "read_object",
]
