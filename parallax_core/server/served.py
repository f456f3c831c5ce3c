"""What a server serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from parallax_core.contracts.engine import Engine
from parallax_core.node.text import ModelText
from parallax_core.server.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class Served:
    """The model behind the API."""

    model_id: str
    engine: Engine
    text: ModelText
    created: int = field(default_factory=lambda: int(time.time()))
    """When it was begun to be served, in seconds since 1970."""

    def check_model(self, name: str) -> None:
        """Raise UnknownModel, unless ``name`` is the model served here."""
        if name != self.model_id:
            raise UnknownModel(f"the model '{name}' does not exist", f"this server has '{self.model_id}'")

    def describe(self) -> dict[str, object]:
        """Return the model in OpenAI's shape."""
        return {"id": self.model_id, "object": "model", "created": self.created, "owned_by": "parallax"}
