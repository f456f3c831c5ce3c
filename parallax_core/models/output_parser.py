"""Chooses the parser for the outputs of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.contracts.parser import Parser, ParserSpec
from parallax_core.models.adapters import find_spec
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

AUTO, NONE = "auto", "none"
"""The values of ``--parser`` besides the name of a parser."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputParser:
    """A parser that was chosen."""

    spec: ParserSpec
    make: Callable[[], Parser]
    """Makes a parser for one answer."""


def find_parser(host: PluginHost, config: Mapping[str, Any], template: str, choice: str = AUTO) -> OutputParser | None:
    """Return the parser for the outputs of a model, or None if its text is not parsed.

    Args:
        host: of the plugins.
        config: the contents of the model's config.json.
        template: its chat template.
        choice: ``none``, the name of a parser, or ``auto``: the one that the model's adapter names, else the one that
            suits the template best.

    Raises:
        UsageError: if no plugin offers a parser of that name.
        PluginConflict: if several plugins do, or several claim the model's architecture.
        BrokenPlugin: if it cannot be loaded.
    """
    if choice == NONE:
        return None
    offer = _get(host, choice) if choice != AUTO else _detect(host, config, template)
    return None if offer is None else OutputParser(offer.spec, offer.load(offer.spec.factory))


def check_parser(host: PluginHost, choice: str) -> None:
    """Check ``choice`` before the model is there; raises what `find_parser` raises."""
    if choice not in {AUTO, NONE}:
        _get(host, choice)


def _get(host: PluginHost, name: str) -> Offer[ParserSpec]:
    parsers = host.parsers()
    if name not in parsers.names():
        message = f"there is no parser named {name!r}"
        raise UsageError(message, f"--parser is auto, none, or one of: {', '.join(parsers.names())}")
    return parsers.get(name)


def _detect(host: PluginHost, config: Mapping[str, Any], template: str) -> Offer[ParserSpec] | None:
    model = find_spec(host, config)
    if model is not None and model.parser:
        return _get(host, model.parser)
    suited = [offer for offer in host.parsers().offers if _suits(offer.spec, template)]
    most = max((len(offer.spec.template_marks) for offer in suited), default=0)
    best = [offer for offer in suited if len(offer.spec.template_marks) == most]
    if len(best) > 1:
        names = " and ".join(offer.spec.name for offer in best)
        logger.warning("parsers %s suit the chat template equally: choose one with --parser", names)
        return None
    return best[0] if best else None


def _suits(spec: ParserSpec, template: str) -> bool:
    return bool(spec.template_marks) and all(mark in template for mark in spec.template_marks)
