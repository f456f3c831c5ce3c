"""Messages by which a node joins a head and becomes a stage of its pipeline.

The node connects and exchanges greetings. It describes itself (`Join`) and waits. The head assigns it a stage
(`Assign`); the node loads the stage, reports progress (`Loading`), and reports the open stage (`Ready`) or why it
cannot be opened (`Refusal`). Once all stages are ready, the head names each stage's neighbours (`Hop`), and each stage
reports when it is connected to them (`Linked`). Then steps follow. A node may be assigned a stage again at any time,
which ends its current work: after a loss, the head rebuilds its pipeline, and a node that is assigned the stage it
already has keeps its weights. A stage whose node is about to end reports that (`Leave`), so that the head can have
another node load its layers first.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.device import DType
from parallax_core.contracts.progress import Unit
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.value import Count, Counter
from parallax_core.wire.base import Name, PeerKey, StageMessage, Text


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Sent by a node to offer itself to a head, after the greeting."""

    address: Text
    """The address at which other nodes reach it, in the transport's notation."""
    backends: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    """The backends that run on it, the best first."""
    host: Name
    """The host name of its machine."""
    pid: Count
    model: Text = ""
    """The model it still has loaded for an earlier head, or the only one that it runs; empty: none."""
    start: Count = 0
    stop: Count = 0
    """``start`` to ``stop`` are the layers of that model; both 0: the whole model."""
    memory: Count = 0
    """Bytes of memory free for a stage on its machine; 0: unknown."""
    is_fixed: bool = False
    """Whether it runs nothing but those layers of that model, loaded or not."""
    place: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Names its machine and the folder of its keys; that of a copy of both is another. Empty: unknown."""


class Assign(StageMessage, frozen=True, tag=8):
    """Assigns a stage to a node; see `StagePlan` for the meaning of the fields."""

    stage: Count
    """The index in the pipeline, counted from 0."""
    backend: Name
    """Empty: the node's best one."""
    model: Text
    """The model as the user named it; the node finds or fetches it."""
    start: Count
    stop: Count
    """``start`` to ``stop`` are its layers, half open; both 0: the whole model."""
    dtype: DType
    device: Text
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)]
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    max_batch_tokens: Count = 0
    max_running: Count = 0
    holds_start: Count = 0
    holds_stop: Count = 0
    """For a lease: ``holds_start`` to ``holds_stop`` are the layers that the node holds for all its leases."""
    memory_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """For a lease: its share of the memory for KV pages; 0: the stage is no lease, and shares nothing."""


class Loading(StageMessage, frozen=True, tag=9):
    """Reports a node's progress in loading its stage; see `Progress`."""

    stage: Count
    task: Name
    done: Count
    total: Counter
    """-1: unknown."""
    unit: Unit = "bytes"


class Ready(StageMessage, frozen=True, tag=10):
    """Reports that a node has loaded its stage; all sequences open on it before are dropped."""

    stage: Count
    info: StageInfo


class Refusal(StageMessage, frozen=True, tag=11):
    """Reports that a node cannot open its stage or connect to its neighbours."""

    stage: Count
    message: Text
    hint: Text = ""
    lacks_leases: bool = False
    """For a lease: whether the backend lacks leases for the model; the node may still have its own stage."""
    unreached: Name = ""
    """The node of the next stage, if it was not reached; empty: it was, or something else went wrong."""


class Hop(StageMessage, frozen=True, tag=12):
    """Names a stage's neighbours: it accepts a link from the previous one and connects to the next."""

    stage: Count
    before: Name
    """Empty: the head, over the existing link."""
    after: Name
    """Empty: this is the last stage."""
    address: Text
    """The address of the next; empty if ``after`` is."""
    before_key: PeerKey = b""
    """The key that ``before`` proves; empty: the node knows it, or none is needed."""
    after_key: PeerKey = b""


class Linked(StageMessage, frozen=True, tag=13):
    """Reports that a stage has links to its neighbours and waits for steps."""

    stage: Count
    relay: Name = ""
    """The relay that links it to the next stage; empty for a direct link or none."""


class Release(StageMessage, frozen=True, tag=14):
    """Releases a node from its stage; it may join again."""

    keeps_layers: bool = False
    """For a lease: whether the node keeps the layers that it holds, also if this was the last lease of them."""


class Leave(StageMessage, frozen=True, tag=21):
    """Reports that a node is about to end, and works on until the head releases it; sent by a stage that runs steps."""


class HandOver(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=42):
    """The last message on a link to a neighbour: the next ones come over another link, which was made meanwhile."""
