"""The section ``[run]``, which defines the options of ``parallax run``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.api import Objective
from parallax_core.api.cli import ADVANCED
from parallax_core.api.deployment import MODEL, STAGES, ServerSettings, ServeSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(ServerSettings):
    """The settings of a server with machines that join by a code and stages chosen by a planner."""

    listen: Annotated[
        str,
        Meta(description="The address where machines join; always encrypted.", extra={"metavar": "ADDRESS"}),
        STAGES,
    ] = "tcp://0.0.0.0:9000"
    nodes: Annotated[
        int,
        Meta(description="Wait for N nodes first; 0: start when the model fits.", ge=0, extra={"metavar": "N"}),
        STAGES,
    ] = 0
    local: Annotated[bool, Meta(description="Run layers on this machine, too."), STAGES] = True
    memory: Annotated[
        float | None,
        Meta(
            description="Gigabytes for layers on this machine; by default the free memory, if known.",
            gt=0,
            extra={"metavar": "GB"},
        ),
        STAGES,
    ] = None
    max_context: Annotated[
        int | None,
        Meta(
            description="The most tokens of a request, prompt and answer, on this machine; by default the model's.",
            ge=1,
            le=10_000_000,
            extra={"metavar": "N"},
        ),
        ADVANCED,
    ] = None
    label: Annotated[
        tuple[str, ...],
        Meta(
            description="A label of this machine, such as room=attic; may be repeated.",
            extra={"metavar": "KEY=VALUE"},
        ),
        ADVANCED,
    ] = ()
    node_selector: Annotated[
        tuple[str, ...],
        Meta(
            description="Give layers only to machines with this label; may be repeated.",
            extra={"metavar": "KEY=VALUE"},
        ),
        ADVANCED,
    ] = ()
    spread_by: Annotated[
        str,
        Meta(
            description="Keep each replica on machines with one value of this label, such as room.",
            extra={"metavar": "KEY"},
        ),
        ADVANCED,
    ] = ""
    hold_moves: Annotated[
        bool, Meta(description="Move layers only when a node is lost or leaves, or `nodes --rebalance` asks."), STAGES
    ] = False
    code_hours: Annotated[
        float,
        Meta(
            description="Hours for which the join code is valid; 0: make none.",
            ge=0,
            le=24 * 365,
            extra={"metavar": "HOURS"},
        ),
        STAGES,
    ] = 24.0
    known: Annotated[
        tuple[str, ...],
        Meta(
            description="Another model that clients may name, loaded later; may be repeated.",
            extra={"metavar": "MODEL"},
        ),
        MODEL,
    ] = ()
    load_on_demand: Annotated[
        bool, Meta(description="Load a known model when a request names it, beside the others, if it fits."), MODEL
    ] = False
    variant: Annotated[
        tuple[str, ...],
        Meta(
            description="Other files of the model for nodes of a backend, or a file of these; may be repeated.",
            extra={"metavar": "BACKEND=MODEL|FILE|catalogue"},
        ),
        MODEL,
    ] = ()
    mix_weights: Annotated[
        bool, Meta(description="Let machines that load different variants of the model serve together."), MODEL
    ] = False
    mix_answers: Annotated[
        bool,
        Meta(description="Continue answers by other weights after a loss, with a note; otherwise they end."),
        ADVANCED,
    ] = False
    standby_of: Annotated[
        str,
        Meta(
            description="Follow the server of this code or address, and take its place on `parallax cluster promote`.",
            extra={"metavar": "CODE|ADDRESS"},
        ),
        STAGES,
    ] = ""
    new_term: Annotated[
        bool,
        Meta(description="Serve again although another server took over, since that one is lost for good."),
        STAGES,
    ] = False
    backend: Annotated[
        str | None,
        Meta(description="The backend of every node; by default its best.", extra={"metavar": "NAME"}),
        STAGES,
    ] = None
    transport: Annotated[str, Meta(description="The transport between nodes.", extra={"metavar": "NAME"}), STAGES] = (
        "zmq"
    )
    placement: Annotated[
        str, Meta(description="The policy that places layers on nodes.", extra={"metavar": "POLICY"}), STAGES
    ] = "search"
    objective: Annotated[Objective, Meta(description="The goal: throughput or latency."), STAGES] = "throughput"
    concurrency: Annotated[
        int,
        Meta(description="Plan for N requests at the same time.", ge=1, le=1_000_000, extra={"metavar": "N"}),
        STAGES,
    ] = 8
    prompt_tokens: Annotated[
        int, Meta(description="Plan for prompts of N tokens.", ge=1, le=10_000_000, extra={"metavar": "N"}), ADVANCED
    ] = 512
    output_tokens: Annotated[
        int, Meta(description="Plan for answers of N tokens.", ge=1, le=10_000_000, extra={"metavar": "N"}), ADVANCED
    ] = 256

    def as_serve(self) -> ServeSettings:
        """Return the settings of a server that waits for nodes at the same address."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(ServerSettings)}
        return ServeSettings(**shared, listen=self.listen, backend=self.backend, transport=self.transport)
