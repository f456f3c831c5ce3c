"""Regular expressions in grammars."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from parallax_grammar_tools.lark import write_pattern


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("a|b", "/(?:a|b)/"),
        ("a/b", r"/(?:a\/b)/"),
        (r"a\/b", r"/(?:a\/b)/"),
        ("a\nb", r"/(?:a\nb)/"),
        (r"a\\/b", r"/(?:a\\\/b)/"),
    ],
)
def test_pattern_is_written_as_lark_reads_it(pattern: str, written: str) -> None:
    assert write_pattern(pattern) == written
    assert LLMatcher.validate_grammar(f"start: {written}") == ""
