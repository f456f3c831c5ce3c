"""What a server serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import fastapi

from parallax_core.contracts.engine import Engine, Request
from parallax_core.contracts.status import NodeStatus
from parallax_core.node.text import ModelText
from parallax_core.server.errors import UnknownModel
from parallax_core.server.flow import Flow
from parallax_core.server.metrics import Meter


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind the API."""

    model_id: str
    engine: Engine
    text: ModelText
    meter: Meter = field(default_factory=Meter)
    created: int = field(default_factory=lambda: int(time.time()))
    """When it was begun to be served, in seconds since 1970."""
    list_waiting: Callable[[], Sequence[NodeStatus]] = tuple
    """Returns the nodes that have joined and have nothing to do."""

    def __post_init__(self) -> None:
        self.meter.watch(self.engine)

    def submit(self, requests: Sequence[Request], http: fastapi.Request) -> Flow:
        """Submit what one HTTP request asks for."""
        arrived, parent = getattr(http.state, "arrived", None), http.headers.get("traceparent", "")
        return Flow.submit(self.engine, requests, [self.meter.begin(arrived, parent) for _ in requests])

    def check_model(self, name: str) -> None:
        """Raise UnknownModel, unless ``name`` is the model served here."""
        if name != self.model_id:
            raise UnknownModel(f"the model '{name}' does not exist", f"this server has '{self.model_id}'")

    def describe(self) -> dict[str, object]:
        """Return the model in OpenAI's shape."""
        return {"id": self.model_id, "object": "model", "created": self.created, "owned_by": "parallax"}
