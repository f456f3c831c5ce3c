"""The defaults of the contract: a number that is left out is 0, which says none or unknown, but for those listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import msgspec
import pytest

MODULES = (
    "parallax_core.contracts.backend",
    "parallax_core.contracts.engine",
    "parallax_core.contracts.engine_spec",
    "parallax_core.contracts.model",
    "parallax_core.contracts.placement",
    "parallax_core.contracts.policy",
    "parallax_core.contracts.replica",
    "parallax_core.contracts.sample",
    "parallax_core.contracts.stage",
    "parallax_core.contracts.status",
    "parallax_core.contracts.token_engine",
    "parallax_core.contracts.transport",
    "parallax_core.wire.membership",
    "parallax_core.wire.messages",
    "parallax_cluster.wire.further",
    "parallax_cluster.wire.profile",
    "parallax_cluster.wire.relay",
    "parallax_cluster.wire.succession",
)
OTHERS = {
    "Draw.count": 1,
    "Draw.top": -1,
    "EngineInfo.max_answers": 1,
    "EngineSpec.max_answers": 1,
    "FrameLimits.buffers": 64,
    "FrameLimits.frame_bytes": 256 * 2**20,
    "FrameLimits.header_bytes": 4 * 2**20,
    "LoadedSize.value_bytes": 2,
    "Request.n": 1,
    "ServingGoal.concurrency": 8,
    "ServingGoal.output_tokens": 256,
    "ServingGoal.prompt_tokens": 512,
    "TransportPlan.credit": 16,
}
"""By field: what a number is where nobody states it, if that is not 0."""


def list_defaults(module: str) -> Iterator[tuple[str, Any]]:
    """Yield each field of the types of a module that has a number as its default."""
    for owner in vars(import_module(module)).values():
        if not isinstance(owner, type) or owner.__module__ != module:
            continue
        fields: Any = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
        if issubclass(owner, msgspec.Struct):
            fields = msgspec.structs.fields(owner)
        for field in fields:
            if type(field.default) is int:
                yield f"{owner.__name__}.{field.name}", field.default


@pytest.mark.parametrize("module", MODULES)
def test_number_that_is_left_out_is_zero_unless_it_is_listed(module: str) -> None:
    found = dict(list_defaults(module))
    assert found == {name: OTHERS.get(name, 0) for name in found}


def test_every_number_that_is_listed_is_there() -> None:
    found = {name for module in MODULES for name, _ in list_defaults(module)}
    assert found >= OTHERS.keys()
    assert len(found) > 60
