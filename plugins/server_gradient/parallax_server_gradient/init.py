"""Reads bodies of ``POST /scheduler/init``, and says which change of the server's models they ask for."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.api import InvalidRequest

NEEDED = ("model_name", "init_nodes_num")
MOST_NODES = 2**31 - 1
AT_WORK = ("loading", "ready")
"""The states of a model that is served, or is about to be."""


class Init(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /scheduler/init``."""

    model_name: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    init_nodes_num: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
    """The machines to wait for; without effect, since the server waits for what the model needs."""
    is_local_network: bool | None = None
    """Whether all machines are in one network; without effect, since a join code works in any."""


class Known(msgspec.Struct):
    """A model that the server knows."""

    id: str
    state: str
    names: list[str] = []
    """What it may be called, its id included."""


class KnownModels(msgspec.Struct):
    """The server's answer to ``GET /v1/cluster/models``."""

    data: list[Known]

    def find_change(self, model: str) -> bytes | None:
        """Return the change by which a model is served, alone if one was; None: it is served, or about to be.

        ``model``: its id, or another name of it.
        """
        loaded = [each for each in self.data if each.state in AT_WORK]
        if any(model in {each.id, *each.names} for each in loaded):
            return None
        return msgspec.json.encode({"action": "switch" if loaded else "load", "model": model})


def read_init(data: bytes) -> Init:
    """Return a body.

    Raises:
        InvalidRequest: if it is not valid; it names the field.
    """
    try:
        content = msgspec.json.decode(data)
        for name in NEEDED:
            if isinstance(content, dict) and content.get(name) is None:
                raise InvalidRequest(f"{name} is required", name)
        return msgspec.convert(content, Init)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid for this route: {error}") from None
