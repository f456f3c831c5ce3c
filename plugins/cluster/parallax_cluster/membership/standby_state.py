"""What a standby of a coordinator has to know to take its place, as bytes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_cluster.membership.term_proof import Signer
from parallax_cluster.placement.stage_row import StageRow
from parallax_cluster.wire.succession import MOST_PROOF, MOST_STANDBYS
from parallax_core.api import DType, Objective

MOST_MACHINES = 10_000
"""The most machines of a cluster."""
MOST_MODELS = 1000
"""The most models that a cluster serves at a time."""
Number = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `parallax run` that hold for a cluster, and not for the machine of its coordinator."""

    dtype: DType = "auto"
    backend: str | None = None
    placement: str = "search"
    objective: Objective = "throughput"
    concurrency: Number = 8
    prompt_tokens: Number = 512
    output_tokens: Number = 256
    node_selector: tuple[str, ...] = ()
    spread_by: str = ""


class AcceptedStandby(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that a coordinator has accepted as a standby, whether it follows now or not."""

    machine: str
    """Its name."""
    key: bytes
    """The key that it proves on its links."""
    signer: Signer
    """The key by which it would sign its term."""
    address: str = ""
    """Where it would listen; empty: that is not known."""


class StandbyState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a coordinator."""

    cluster: bytes
    """The number that names the cluster."""
    term: Annotated[int, msgspec.Meta(ge=0)]
    model: str
    """What the user called the model."""
    settings: ClusterSettings = ClusterSettings()
    machines: Annotated[dict[str, bytes], msgspec.Meta(max_length=MOST_MACHINES)] = {}
    """The keys of the machines that have joined, by name."""
    removed: Annotated[dict[bytes, str], msgspec.Meta(max_length=MOST_MACHINES)] = {}
    """The keys of the machines that were removed, each with the name that it had."""
    servers: Annotated[dict[str, bytes], msgspec.Meta(max_length=MOST_MACHINES)] = {}
    """The keys of those that may be servers, by name; of a machine that takes over, until it has allowed them."""
    plan: dict[int, list[StageRow]] = {}
    """The stages of each pipeline, by its rank."""
    memories: dict[str, int] = {}
    """By node: the bytes that were free before it loaded layers."""
    other_models: Annotated[list[str], msgspec.Meta(max_length=MOST_MODELS)] = []
    """The models that are loaded besides ``model``, as users call them."""
    drained: Annotated[list[str], msgspec.Meta(max_length=MOST_MACHINES)] = []
    """The machines that an operator has drained, by name."""
    proof: Annotated[bytes, msgspec.Meta(max_length=MOST_PROOF)] = b""
    """Proves the term; empty in a state of a version of Parallax that proved none. See `read_proof`."""
    standbys: Annotated[list[AcceptedStandby], msgspec.Meta(max_length=MOST_STANDBYS)] = []
    """The machines that may take over, the latest last."""
    predecessor: Annotated[bytes, msgspec.Meta(max_length=256)] = b""
    """The key that the coordinator proves on its links from which this one took over; empty: from none."""
    newer: Annotated[bytes, msgspec.Meta(max_length=MOST_PROOF)] = b""
    """Proves that another coordinator has taken over from this one; empty: none has."""


def write_state(state: StandbyState) -> bytes:
    """Return a state as bytes."""
    return msgspec.msgpack.encode(state)


def read_state(data: bytes) -> StandbyState:
    """Return the state that ``data`` stands for.

    Raises:
        ValueError: if it is damaged.
    """
    return msgspec.msgpack.decode(data, type=StandbyState)
