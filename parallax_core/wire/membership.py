"""How a node joins a head, and becomes a stage of its pipeline.

The node connects, and greets. It says what it has to offer (`Join`), and waits. The head gives it a stage (`Assign`);
the node loads it, saying how far it is (`Loading`), and says what it has become (`Ready`) or why not (`Refusal`). Once
all stages are ready the head tells each who its neighbours are (`Hop`), and each says when it has links to them
(`Linked`). Then steps come. A node may be given a stage again at any time, which ends what it does: after a loss, the
head builds its pipeline anew, and who has just that stage keeps its weights.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.backend import DType
from parallax_core.contracts.progress import Unit
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.value import Count, Counter
from parallax_core.wire.base import Leased, Name

MOST_TEXT = 4096
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Join(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """A node offers itself to a head, once they have greeted."""

    address: Text
    """Where other nodes reach it, in the transport's words."""
    backends: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    """Those that run on it, the best first."""
    host: Name
    """The machine it is on."""
    pid: Count
    model: Text = ""
    """What it still has loaded, for an earlier head; empty: nothing."""
    start: Count = 0
    stop: Count = 0
    """Its layers; both 0: the whole model."""
    memory: Count = 0
    """Bytes that are free on its machine for a stage; 0: not known."""


class Assign(Leased, frozen=True, tag=8):
    """A node is to be a stage; see `StagePlan` for what the fields mean."""

    stage: Count
    """Which of the pipeline, counted from 0."""
    backend: Name
    """Empty: its best."""
    model: Text
    """As a user writes it, to be found or fetched where the node is."""
    start: Count
    stop: Count
    """Its layers, half open; both 0: the whole model."""
    dtype: DType
    device: Text
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)]
    heartbeat_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    max_batch_tokens: Count = 0
    max_running: Count = 0


class Loading(Leased, frozen=True, tag=9):
    """How far a node is with loading its stage; see `Progress`."""

    stage: Count
    task: Name
    done: Count
    total: Counter
    """-1: not known."""
    unit: Unit = "bytes"


class Ready(Leased, frozen=True, tag=10):
    """A node has loaded its stage; all that was open on it before is dropped."""

    stage: Count
    info: StageInfo


class Refusal(Leased, frozen=True, tag=11):
    """A node cannot be that stage, or have these neighbours."""

    stage: Count
    message: Text
    hint: Text = ""


class Hop(Leased, frozen=True, tag=12):
    """Who the neighbours of a stage are: it waits for a link of the one before, and makes one to the next."""

    stage: Count
    before: Name
    """Empty: the head, over the link there is."""
    after: Name
    """Empty: this is the last stage."""
    address: Text
    """Where the next is; empty with ``after``."""


class Linked(Leased, frozen=True, tag=13):
    """A stage has links to its neighbours, and waits for steps."""

    stage: Count


class Release(Leased, frozen=True, tag=14):
    """A node is a stage of the head no longer; it may offer itself again."""
