"""Requests with grammars over the toy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from parallax_core.api import Grammar, Request, RequestId, Sampling
from parallax_core.node.pipeline.options import PipelineOptions
from tests.support.grammars import STOP, SumCompiler, make_grammar

HOT = Sampling(temperature=3.0, seed=8)


def plan(compiler: SumCompiler | None = None, **fields: Any) -> PipelineOptions:
    return replace(PipelineOptions(grammars=compiler or SumCompiler(), heartbeat_s=0.02), **fields)


def ask(prompt: Sequence[int], grammar: Grammar | None = None, **fields: Any) -> Request:
    request = Request(
        id=RequestId(f"{id(prompt)}-{len(NAMES)}"),
        prompt=tuple(prompt),
        max_tokens=25,
        sampling=HOT,
        stop_ids=frozenset({STOP}),
        grammar=grammar or make_grammar(),
    )
    NAMES.append(request.id)
    return replace(request, **fields)


NAMES: list[str] = []
