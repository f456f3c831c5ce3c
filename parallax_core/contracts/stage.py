"""The stage contract: sequences, rows and draws; never page tables.

A stage is a contiguous range of layers of one model, loaded by a backend. Core names sequences by handles,
edits them (`Open`, `Fork`, `Truncate`, `Drop`) and runs ragged batches of rows over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from parallax_core.base.ids import SeqId
from parallax_core.contracts.sample import Sampling


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers ``start`` to ``stop``, half open, in the numbering of the whole model."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolInfo:
    """One pool of KV pages of a stage. Filled by the backend when the stage opens."""

    kind: Literal["full", "window", "latent", "state"]
    page_size: int
    """Token slots per page."""
    num_pages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageInfo:
    """What a stage says of itself once it is open. Filled by the backend."""

    layers: LayerRange
    num_layers: int
    """Layers of the whole model."""
    vocab_size: int
    """Token ids lie in ``range(vocab_size)``."""
    context_length: int
    """The longest sequence the model was made for, in tokens."""
    max_batch_tokens: int
    """The most tokens one `StageBatch` may hold, summed over its rows."""
    pools: tuple[PoolInfo, ...]
    device: str
    """In words a person knows, such as ``cpu (OpenBLAS 0.3.34)``."""
    dtype: str
    """The dtype activations are computed in: ``float32``, ``float16`` or ``bfloat16``."""
    weight_bytes: int
    weights_version: str
    """Changes whenever the weights do; part of every prefix key."""
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceSpec:
    """What holds for a whole sequence, said once when it is opened. Filled by the head."""

    prompt_length: int
    """Tokens of the prompt; what is drawn after them counts as output."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Open:
    """Begin an empty sequence."""

    seq: SeqId
    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class Fork:
    """Begin ``dst`` as the first ``length`` tokens of ``src``, with its spec; independent from then on."""

    src: SeqId
    dst: SeqId
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget everything of ``seq`` from token ``length`` on."""

    seq: SeqId
    length: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget ``seq``. Its handle is never used again."""

    seq: SeqId


Edit = Open | Fork | Truncate | Drop


@dataclass(frozen=True, slots=True)
class Draw:
    """Ask for the token after position ``offset`` of a row (an index into `Row.tokens`)."""

    offset: int


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive tokens of one sequence: a prefill chunk (no outputs) or a decode (one token, one draw)."""

    seq: SeqId
    start: int
    """The sequence's length on this stage before the step; the position of the first token."""
    tokens: tuple[int, ...]
    outputs: tuple[Draw, ...] = ()


@dataclass(frozen=True, slots=True)
class StageBatch:
    """One step: rows of different sequences, each at most once, prefill and decode mixed."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a step produced."""

    drawn: tuple[int, ...]
    """One token id for each output of each row, in row order."""


class StageOutput(Protocol):
    """The outcome of a step, possibly still being computed."""

    def wait(self) -> StageResult:
        """Block until the result is there. Raises what the computation raised."""


class Stage(Protocol):
    """Layers of one model, ready to run. One and the same thread opens, steps, edits and closes it."""

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself; constant while it is open."""

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order.

        Raises:
            KeyError: for a sequence that is not open (or, for `Open` and ``Fork.dst``, already is).
            ValueError: for a length beyond the sequence's.
            Unsupported: for a length the model's state cannot go back to.
        """

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch`` and append its tokens to their sequences.

        A step that raises leaves every sequence at its length before the step.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: if the batch is too large, a row does not start at its sequence's length, or names a token,
                a position or an offset that does not exist.
            BackendFailed: if the computation failed.
        """

    def close(self) -> None:
        """Release everything. Calling it twice is harmless."""
