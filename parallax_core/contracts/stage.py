"""The stage contract: sequences, rows and outputs; never page tables.

A stage is a contiguous range of layers of one model, loaded by a backend. Core names sequences by handles,
edits them (`Open`, `Fork`, `Truncate`, `Drop`) and runs ragged batches of rows over them.

Types that cross between nodes are `Value` structs, encoded as arrays: new fields come last and have a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, runtime_checkable

import msgspec

from parallax_core.contracts.capability import Capability
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.tensor import Tensor, TensorSpec
from parallax_core.contracts.value import LARGEST, Count, Counter, Handle, Value

MOST_PAGES = 2**24
"""The most pages of a pool: a head keeps a record of each, and a stage's report must not exhaust its memory."""
SHARE_ROUNDING = 1e-9
"""By how much the memory shares of all leases of a stage may exceed 1: sums of floats are not exact."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers ``start`` to ``stop``, half open, in the numbering of the whole model."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


PoolKind = Literal["full", "window", "latent", "state"]
"""The kinds of pools of pages: all tokens, a sliding window of them, compressed latents, or a state per sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolInfo:
    """One pool of KV pages of a stage. Filled by the backend when the stage opens; `PagePool` defines its semantics."""

    kind: PoolKind
    """The content of a page: keys and values, those of a sliding window, a latent of both, or a recurrent state."""
    page_size: int
    """Token slots per page; a state takes one page per sequence regardless."""
    num_pages: int
    """At most 2**24."""
    window: int = 0
    """For a window pool: the number of tokens that a token attends to, itself included."""
    rewind: int = 0
    """For a window pool: the most tokens before its end at which a sequence can be forked or truncated."""
    shares: bool = True
    """Whether a fork shares full pages; otherwise it copies all of them, and no two sequences share memory."""
    checkpoint_every: int = 0
    """For a state pool: the scheduler ends prefill chunks at multiples of this, and stores a fork there; 0: never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageInfo:
    """The properties of an open stage. Filled by the backend."""

    layers: LayerRange
    num_layers: int
    """Layers of the whole model."""
    vocab_size: int
    """Token ids lie in ``range(vocab_size)``."""
    context_length: int
    """The longest sequence that the model supports, in tokens."""
    max_batch_tokens: int
    """The most tokens in one `StageBatch`, summed over its rows."""
    pools: tuple[PoolInfo, ...]
    """A token takes a slot in every pool."""
    device: str
    """A human-readable description, such as ``cpu (OpenBLAS 0.3.34)``."""
    dtype: str
    """The dtype of the activations: ``float32``, ``float16`` or ``bfloat16``."""
    weight_bytes: int
    weights_version: str
    """Identifies the content of the weights: changes if and only if they change; part of every prefix key."""
    capabilities: frozenset[Capability] = frozenset()
    takes: tuple[TensorSpec, ...] = ()
    """The hidden tensors it takes, each of another name; empty for a stage that starts with layer 0."""
    gives: tuple[TensorSpec, ...] = ()
    """The hidden tensors it returns, as `takes`; empty for a stage that ends with the last layer."""
    saturation_rows: int = 0
    """The number of decodes in a step above which step time grows in proportion, so that running more sequences at the
    same time gains no throughput; 0: unknown."""
    weights_parts: Mapping[str, str] = field(default_factory=dict)
    """Identifies the content of the weights part by part: of each layer, as ``model.layers.3``, of each other tensor,
    and of each file that the model's source lists. Stages that disagree on a part are not served together. Empty:
    unknown; see `identify_weights`."""
    steps_ahead: int = 0
    """The number of later steps that core submits, if they have come, before it waits for the result of one; at most
    16. 0: core waits at once, which costs nothing where `Stage.step` computes before it returns. When a result that is
    waited for raises, core discards the steps submitted after it and drops all sequences."""


class SequenceSpec(Value, frozen=True, kw_only=True):
    """The properties of a whole sequence, sent once when it is opened. Filled by the head."""

    prompt_length: Count
    """The number of prompt tokens; later tokens count as output."""
    sampling: Sampling
    adapter: str = ""
    """The name of a loaded LoRA adapter; empty: none."""
    priority: Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)] = 0
    """Lower is served first; for backends that schedule inside a stage."""
    salt: str = ""
    """Sequences of different salts share no cache."""


class Open(Value, frozen=True, tag=0):
    """Open an empty sequence, whose draws are those of ``choice``; see `parallax_core.sampling.draw_key`."""

    seq: Handle
    spec: SequenceSpec
    choice: Count = 0


class Fork(Value, frozen=True, tag=1):
    """Open ``dst`` as the first ``length`` tokens of ``src``; the two are independent from then on.

    It inherits the spec unless a ``spec`` is given here (never with another adapter), and its draws are those of
    ``choice``; see `parallax_core.sampling.draw_key`.
    """

    src: Handle
    dst: Handle
    length: Count
    choice: Count = 0
    spec: SequenceSpec | None = None


class Truncate(Value, frozen=True, tag=2):
    """Remove the tokens of ``seq`` from ``length`` on."""

    seq: Handle
    length: Count


class Drop(Value, frozen=True, tag=3):
    """Close ``seq``. Its handle is never used again."""

    seq: Handle


Edit = Open | Fork | Truncate | Drop


class Draw(Value, frozen=True, tag=0):
    """Draw the token after the one at ``offset`` of a row (an index into `Row.tokens`)."""

    offset: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] = 1
    """The number of tokens: the j-th is the one that a fork with ``choice`` j above the sequence's own would draw."""
    top: Counter = -1
    """Also return the log-probabilities of the drawn tokens and of this many best tokens; -1: neither."""
    masked: bool = False
    """Whether the draw waits for a mask, and takes only tokens that it allows; log-probabilities are then those under
    the mask. All of ``count`` tokens are drawn under the same mask. Needs the capability ``masks``."""


class Score(Value, frozen=True, tag=1):
    """Return the log-probability of ``token`` after the one at ``offset``, and those of the ``top`` best tokens."""

    offset: Count
    token: Count
    top: Count = 0


class Hidden(Value, frozen=True, tag=2):
    """Return the last hidden state, after the final norm, of the token at ``offset``."""

    offset: Count
    summed: Count = 0
    """Return instead the sum of the states of this many tokens of the row, of which that one is the last, in float32;
    0: no sum. Needs the capability ``hidden_sums``."""


Output = Draw | Score | Hidden


class Span(Value, frozen=True):
    """Embeddings in place of tokens on stage 0: ``tensor`` of the batch, from row ``start`` of the tensor on."""

    offset: Count
    """The index in `Row.tokens` of the first placeholder."""
    length: Count
    tensor: Count
    """An index into `StageBatch.embeddings`."""
    start: Count = 0


class Row(Value, frozen=True):
    """Consecutive tokens of one sequence: a prefill chunk (often without outputs) or a decode (one token, a draw)."""

    seq: Handle
    start: Count
    """The sequence's length on this stage before the step; also the first token's position without ``positions``."""
    tokens: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    outputs: tuple[Output, ...] = ()
    """In order of offset."""
    positions: tuple[Count, ...] = ()
    """One for each token, increasing; empty: ``start``, ``start + 1``, ..."""
    spans: tuple[Span, ...] = ()


class MaskSource(Protocol):
    """The masks of one step, which come from the head beside the step."""

    def wait(self) -> Mapping[int, Tensor]:
        """Return the masks, blocking until all have come.

        A stage asks on its own thread, as late as it can: the time is not counted as computing, so a long wait is no
        hang. The outputs of all rows are numbered in row order, from 0; a mask is at the number of its draw: uint8 of
        shape [(vocabulary + 7) // 8], where bit ``i % 8`` (1: the lowest) of byte ``i // 8`` allows token ``i``.

        Raises:
            BackendFailed: if they do not come in time. The step then fails like any other: `Stage.step` or
                `StageOutput.wait` passes the error on, and every sequence is as before the step.
        """


@dataclass(frozen=True, slots=True)
class StageBatch:
    """One step: rows of different sequences, each at most once, prefill and decode mixed."""

    rows: tuple[Row, ...]
    hidden: tuple[Tensor, ...] = ()
    """The previous stage's output, as `StageInfo.takes` lists it: shape [tokens of all rows in order, ...] each."""
    embeddings: tuple[Tensor, ...] = ()
    """For the spans of the rows, on stage 0: float, shape [length, width]."""
    step: int = 0
    """The number of the step in its epoch; data sent separately, such as grammar masks, refers to it."""
    masks: MaskSource | None = None
    """The masks of the draws that wait for one; None if there is no such draw."""


class Drawn(Value, frozen=True, tag=0):
    """The answer to a `Draw`."""

    tokens: tuple[Count, ...]
    logprobs: tuple[float, ...] = ()
    """The log-probabilities of the drawn tokens, if requested."""
    top: tuple[tuple[Count, float], ...] = ()
    """The best tokens and their log-probabilities, best first."""


class Scored(Value, frozen=True, tag=1):
    """The answer to a `Score`."""

    logprob: float
    top: tuple[tuple[Count, float], ...] = ()


class State(Value, frozen=True, tag=2):
    """The answer to a `Hidden`: an index into `StageResult.tensors`, float of shape [width]."""

    tensor: Count


Answer = Drawn | Scored | State


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a step."""

    answers: tuple[Answer, ...] = ()
    """One for each output of each row, in row order; empty from a stage before the last."""
    tensors: tuple[Tensor, ...] = ()
    """From a stage before the last, the hidden tensors for the next; from the last, those that answers refer to."""
    free: tuple[int, ...] = ()
    """Free pages of each pool after the step; if they differ from the head's ledger, the stage is lost."""
    sampling_s: float = 0.0
    """Seconds of the step spent on sampling; 0: not measured."""


class StageOutput(Protocol):
    """The result of a step that may still be computing."""

    def wait(self) -> StageResult:
        """Block until the result is available, on the stage's thread. Raises what the computation raised.

        Called once for each step, in the order of the steps; up to `StageInfo.steps_ahead` later steps may have been
        submitted.
        """


class Stage(Protocol):
    """Layers of one model, ready to run. A single thread opens, steps, edits and closes it."""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage; constant while it is open."""

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order. An edit that raises changes nothing; the edits before it stay applied.

        Raises:
            KeyError: if a sequence is not open (or, for `Open` and ``Fork.dst``, is open already).
            ValueError: if a length exceeds the sequence's.
            Unsupported: if the model's state cannot be rewound to a length.
            OutOfPages: if a fork needs more pages than are free.
            BackendFailed: if the stage is closed.
        """

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch`` and append its tokens to their sequences.

        A step that raises leaves every sequence at its length before the step.

        Raises:
            KeyError: if a sequence is not open.
            ValueError: if the batch is too large, a row does not start at its sequence's length, or a token, position
                or offset is out of range.
            OutOfPages: if the rows need more pages than are free.
            BackendFailed: if the computation failed, or the stage is closed. If the stage knows the sequences at fault,
                such as those with non-finite hidden states, the error names them and only their requests end.
            StageLost: if the state of the stage is unknown; it is not used again.
        """

    def close(self) -> None:
        """Release all resources. A second call does nothing."""


@runtime_checkable
class Leasing(Protocol):
    """The optional protocol of a stage that serves through leases: opened with `StagePlan.leased`.

    Such a stage holds weights and no pages. Its `StageInfo` describes a lease of all its layers with the whole memory
    for KV pages, and has the capability ``leases``; its ``edit`` and ``step`` raise `BackendFailed`.
    """

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        """Return a stage of some of the layers that are loaded; the weights are not copied.

        It computes exactly what a stage that loaded only these layers would, and its `StageInfo` is of these layers
        alone: tensors in and out, weights and their version, and pools of its share of the memory. Several leases share
        nothing but weights, also if they have the same layers: each has its own sequences and pages. It is used by the
        thread that opened the stage, as are all of them.

        Closing a lease returns its memory and its share. Closing the stage closes all its leases.

        Args:
            layers: a range of ``StageInfo.layers``, not empty.
            memory_share: the share of the memory for KV pages, above 0 and at most 1; those of open leases sum to at
                most 1.

        Raises:
            ValueError: if the stage does not have these layers, or the share is out of range.
            Unsupported: if these layers of the model cannot be run separately.
            ParallaxError: with a hint, if less than the share is free, or it has no room for a page of each pool.
            BackendFailed: if the stage is closed.
        """
