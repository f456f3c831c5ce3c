"""The library of grammars is found by its entry point, and without one every grammar is refused."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from parallax_core.api import Grammar, InvalidRequest
from parallax_core.api.grammars import AskedAnswer
from parallax_core.models import grammars
from parallax_core.models.grammars import NoLibrary, find_library
from parallax_core.models.tokenizer import ModelTokenizer
from tests.unit.tinymodel import write_model

HINT = "install it on the server: pip install parallax-grammars"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Have the library looked for anew, in each test and after it."""
    find_library.cache_clear()
    yield
    find_library.cache_clear()


def test_library_is_the_first_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"xgrammar": "nowhere:Library", "llguidance": "parallax_core.models.grammars:NoLibrary"}
    points = [EntryPoint(name, place, grammars.GROUP) for name, place in places.items()]
    monkeypatch.setattr(grammars, "entry_points", lambda **_: points)
    assert isinstance(find_library(), NoLibrary)


def test_grammar_is_refused_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "entry_points", lambda **_: [])
    text = ModelTokenizer(write_model(tmp_path))
    assert not text.grammars.can_prepare()
    assert find_library().read_ebnf("root ::= x") == "root ::= x"
    for refuse in (text.grammars.prepare, lambda: text.grammars.compile(Grammar(kind="json_object"))):
        with pytest.raises(InvalidRequest, match="a grammar is not available") as caught:
            refuse()
        assert (caught.value.param, caught.value.hint) == ("grammar", HINT)


async def test_request_that_needs_a_grammar_is_refused_by_its_field_without_a_library() -> None:
    async def accept(_: Grammar) -> None:
        """Compile nothing."""

    asked = AskedAnswer(field="tool_choice", tools={"go": "{}"}, tool_fields={}, forced="go")
    with pytest.raises(InvalidRequest, match="'tool_choice': a grammar is not available") as caught:
        NoLibrary().write_answer(asked)
    assert (caught.value.param, caught.value.hint) == ("tool_choice", HINT)
    with pytest.raises(InvalidRequest, match="'tool_choice': a grammar is not available"):
        await NoLibrary().check_answer(asked, accept)
