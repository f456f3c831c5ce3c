"""The library of grammars is found by its entry point, and without one every grammar is refused."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from parallax_core.api import Grammar, InvalidRequest
from parallax_core.models import grammars
from parallax_core.models.grammars import NoLibrary, find_library
from parallax_core.models.tokenizer import ModelTokenizer
from tests.unit.tinymodel import write_model

HINT = "install it on the server: pip install parallax-grammars"


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
    assert (text.grammars.find_special("<end>"), text.grammars.simplify_schema({"not": False})) == ("", {"not": False})
    for refuse in (text.grammars.prepare, lambda: text.grammars.compile(Grammar(kind="json_object"))):
        with pytest.raises(InvalidRequest, match="a grammar is not available") as caught:
            refuse()
        assert (caught.value.param, caught.value.hint) == ("grammar", HINT)
