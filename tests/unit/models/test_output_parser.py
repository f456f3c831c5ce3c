"""The parser that is named, or that suits a chat template best."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from parallax_core.api import ModelSpec, ParserSpec, Ref, hookimpl
from parallax_core.base.errors import UsageError
from parallax_core.models.output_parser import check_parser, find_parser
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

CALLS, THOUGHTS = "<tool_call>", "<think>"


def make_host(model_parser: str = "", **marks: tuple[str, ...]) -> PluginHost:
    """Return a host of a model, which may name its parser, and of parsers by the marks of their templates."""
    parsers = [
        ParserSpec(name=name, summary="s", factory=Ref("builtins:object"), template_marks=each)
        for name, each in marks.items()
    ]
    model = ModelSpec(
        name="tiny", summary="s", architectures=("Tiny",), adapter=Ref("builtins:object"), parser=model_parser
    )

    @hookimpl
    def parallax_register_parsers() -> list[ParserSpec]:
        return parsers

    @hookimpl
    def parallax_register_models() -> list[ModelSpec]:
        return [model]

    record = PluginRecord(name="one", module="one", distribution="one", version="1", state="loaded")
    hooks = {"parallax_register_parsers": parallax_register_parsers}
    return PluginHost([(record, SimpleNamespace(parallax_register_models=parallax_register_models, **hooks))])


def find(host: PluginHost, template: str, choice: str = "auto") -> str | None:
    found = find_parser(host, {"architectures": ["Tiny"]}, template, choice)
    return None if found is None else found.spec.name


def test_parser_with_the_most_marks_in_the_template_is_chosen() -> None:
    host = make_host(calls=(CALLS,), both=(THOUGHTS, CALLS), by_name=())
    assert find(host, f"{THOUGHTS} {CALLS}") == "both"
    assert find(host, CALLS) == "calls"
    assert find(host, "no marks") is None


def test_of_parsers_that_suit_equally_none_is_chosen_and_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    host = make_host(one=(CALLS,), other=(CALLS,))
    with caplog.at_level(logging.WARNING):
        assert find(host, CALLS) is None
    assert "parsers one and other suit the chat template equally: choose one with --parser" in caplog.text
    assert find(host, CALLS, "other") == "other"


def test_parser_that_the_model_names_comes_before_its_template() -> None:
    host = make_host("by_name", calls=(CALLS,), by_name=())
    assert find(host, CALLS) == "by_name"
    assert find(host, CALLS, "calls") == "calls"
    assert find(host, CALLS, "none") is None


def test_parser_that_nobody_offers_is_refused_before_the_model_is_there() -> None:
    host = make_host(calls=(CALLS,))
    for choice in ("auto", "none", "calls"):
        check_parser(host, choice)
    with pytest.raises(UsageError, match="no parser named 'call'") as refused:
        check_parser(host, "call")
    assert refused.value.hint == "--parser is auto, none, or one of: calls"
