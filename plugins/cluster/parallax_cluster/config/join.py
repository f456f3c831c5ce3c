"""The section ``[join]``, which defines the options of ``parallax join``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.api.deployment import NodeSettings, WorkerSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinSettings(NodeSettings):
    """The settings of a node that joins by a code."""

    where: Annotated[
        str,
        Meta(
            description=(
                "A join code, or the address of a server that was joined by one before; - reads a code. By default "
                "the server that this machine has joined before and finds on its network."
            ),
            extra={"is_argument": True, "metavar": "CODE|ADDRESS|-"},
        ),
    ] = ""
    discovery: Annotated[
        bool, Meta(description="Look for the server on the local network if its address is not known or has changed.")
    ] = True
    api: Annotated[bool, Meta(description="Serve clients of this machine, by forwarding to the server.")] = True
    port: Annotated[
        int | None,
        Meta(
            description="The port of 127.0.0.1 for clients; by default 8000, or a free one if that is taken.",
            ge=0,
            le=65535,
            extra={"metavar": "PORT"},
        ),
    ] = None

    def as_worker(self, *, connect: str, node: str, transport: str) -> WorkerSettings:
        """Return the settings of the worker called ``node``, for the head at ``connect``."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(NodeSettings)}
        return WorkerSettings(**shared, connect=connect, node=node, transport=transport, as_joined=True)
