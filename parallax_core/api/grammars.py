"""What a library of grammars uses."""

from parallax_core.base.files import read_object
from parallax_core.base.schema_refs import IN_OBJECT, VALUES, JsonSchema, follow_references, localize_references
from parallax_core.contracts.grammar import AskedAnswer, Grammar, GrammarCheck, GrammarKind, WrittenGrammar

__all__ = [
    "IN_OBJECT",
    "VALUES",
    "AskedAnswer",
    "Grammar",
    "GrammarCheck",
    "GrammarKind",
    "JsonSchema",
    "WrittenGrammar",
    "follow_references",
    "localize_references",
    "read_object",
]
