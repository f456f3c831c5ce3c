"""A server that may load several toy models, each of which gives other answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_cluster.server.model_changes import ModelChanges
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.status import NodeProgress
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.server.body_messages import ParserTraits
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.hosting import FixedModel
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from parallax_core.testing.toy import Toy
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES
from tests.unit.server.letters import ALPHABET, Letters, Site

KINDS = {
    "toy": ("full",),
    "other": ("full", "window"),
    "third": ("window", "full"),
    "fourth": ("full", "full", "full", "full"),
}
PATIENCE_S = 20.0


def answer_of(model: str, prompt: str, length: int) -> str:
    """Return the answer of one of the models to a single prompt."""
    letters = Letters()
    return letters.decode(make_toy(model).continuation(letters.encode(prompt), length, Letters.sampling))


def make_toy(model: str) -> Toy:
    return Toy(KINDS[model], vocab=len(ALPHABET))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ToyModel(FixedModel):
    """A toy model that a host opens."""

    gate: asyncio.Event | None = None
    """What its start waits for."""

    async def start(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        await FixedModel.start(self)

    def list_progress(self) -> tuple[NodeProgress, ...]:
        return (NodeProgress(node="n/1", layers=(0, 2), task="loading weights", done=5, total=10),)


@dataclass
class ToyHost:
    """Opens the models of `KINDS`; others do not exist."""

    models: ServedModels
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """By model: what opening it waits for."""
    starts: dict[str, asyncio.Event] = field(default_factory=dict)
    """By model: what its start waits for, once it is open."""
    faults: dict[str, ParallaxError] = field(default_factory=dict)
    """By model: why it cannot be opened."""
    opened: list[str] = field(default_factory=list)
    remembered: list[str] = field(default_factory=list)

    def name(self, model: str) -> str:
        if model.startswith("bad"):
            raise UnknownName(f"{model!r} names no model")
        return model

    def remember(self, models: Sequence[str]) -> None:
        self.remembered = [model for model in models if model != "toy"]

    def recall(self) -> Sequence[str]:
        return self.remembered

    async def open(self, model: str) -> ToyModel:
        self.opened.append(model)
        if (gate := self.gates.get(model)) is not None:
            await gate.wait()
        if (fault := self.faults.get(model)) is not None:
            raise fault
        if model not in KINDS:
            raise UnknownName(f"there is no model {model!r}")
        letters, toy = Letters(), make_toy(model)
        engine = PipelineEngine(LocalExecutor([lambda: toy.open(num_pages=200, context=400)]), letters.decode)
        reader = LocalReader(BodyReader(letters, model, BODIES, ParserTraits()))  # type: ignore[arg-type]
        router = Router([engine], LeastPendingTokens(), lambda: 400)
        shared = (self.models.meters,)
        service = Service(model, router, letters, reader, *shared, find_max_length=lambda: 400)  # type: ignore[arg-type]
        return ToyModel(service, self.starts.get(model))


class SeveralSite(Site):
    """The server of `letters`, whose models may be changed."""

    def __init__(self, options: ServerOptions | None = None, *, on_demand: bool = False) -> None:
        self._on_demand = on_demand
        super().__init__(options)
        self.models.note_ready(self.models.known["toy"])

    def prepare(self) -> None:
        self.host = ToyHost(self.models)
        self.changes = ModelChanges(self.models, self.host, on_demand=self._on_demand)
        self.models.changes = self.changes

    def __exit__(self, *_: object) -> None:
        self.client.portal.call(self.changes.stop)  # type: ignore[union-attr]
        self.client.portal.call(self.models.stop)  # type: ignore[union-attr]
        super().__exit__()

    def change(self, action: str, model: str, **fields: Any) -> Any:
        """Ask for a change, and return the response."""
        return self.client.post("/v1/cluster/models", json={"action": action, "model": model, **fields})

    def finish(self) -> dict[str, Any]:
        """Return the change once it has ended."""
        until = time.monotonic() + PATIENCE_S
        while (change := self.show()["change"])["state"] in {"loading", "draining", "restoring"}:
            assert time.monotonic() < until, change
            time.sleep(0.01)
        found: dict[str, Any] = change
        return found

    def wait_for(self, model: str, state: str) -> None:
        """Wait until a model has a state."""
        until = time.monotonic() + PATIENCE_S
        while self.states.get(model) != state:
            assert time.monotonic() < until, self.states
            time.sleep(0.01)

    def show(self) -> dict[str, Any]:
        response = self.client.get("/v1/cluster/models")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    @property
    def states(self) -> dict[str, str]:
        return {each["id"]: each["state"] for each in self.show()["data"]}

    def complete_with(self, model: str, prompt: str = "hello", length: int = 6) -> Any:
        return self.post("/v1/completions", model=model, prompt=prompt, max_tokens=length)
