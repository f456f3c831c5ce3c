from __future__ import annotations

import asyncio
import logging

import pytest

from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.executor import unassigned
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from tests.unit.node.cluster import MODEL, Node, joined, make_executor, open_registry, soon, until


async def test_what_is_missing_is_said_again_and_again_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unassigned, "FIRST_S", 0.01)
    monkeypatch.setattr(unassigned, "AGAIN_S", 0.01)
    caplog.set_level(logging.WARNING)
    first, other, second = Node("attic"), Node("garage", backends=("other",)), Node("cellar")
    async with open_registry() as registry, joined(registry, first, other):
        engine = PipelineEngine(make_executor(registry, 2, backend="toy"), lambda tokens: "x" * len(tokens))
        router = Router([engine], LeastPendingTokens(), lambda: 256)
        starting = asyncio.create_task(router.start())
        expected = (
            f"1 of 2 stages wait for a node: stage 1 with layers 1-3 of {MODEL}; "
            f"run: parallax worker --connect {registry.address} --backend toy; not suitable: 'garage' (other)"
        )
        await until(lambda: router.health().reason == expected)
        await until(lambda: caplog.messages.count(expected) > 1)
        assert router.health().state == router.describe()[0].health.state == "starting"
        assert router.describe()[0].health.reason == expected
        await second.join(registry.address)
        await soon(starting)
        assert (router.health().state, router.health().reason) == ("ready", "")
        await soon(router.stop())
        await second.kill()
