"""What a library of grammars uses."""

from parallax_core.base.files import read_object
from parallax_core.base.schema_refs import IN_OBJECT, VALUES, JsonSchema, follow_references, localize_references
from parallax_core.contracts.grammar import Grammar, GrammarKind

__all__ = [
    "IN_OBJECT",
    "VALUES",
    "Grammar",
    "GrammarKind",
    "JsonSchema",
    "follow_references",
    "localize_references",
    "read_object",
]
