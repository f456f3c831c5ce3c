"""The stage contract: sequences, rows and outputs; never page tables.

A stage is a contiguous range of layers of one model, loaded by a backend. Core names sequences by handles,
edits them (`Open`, `Fork`, `Truncate`, `Drop`) and runs ragged batches of rows over them.

What crosses between nodes is a `Value`, written as an array: growth is at the end, with a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

import msgspec

from parallax_core.contracts.capability import Capability
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.tensor import Tensor, TensorSpec
from parallax_core.contracts.value import LARGEST, Count, Counter, Handle, Value

MOST_PAGES = 2**24
"""The most pages of a pool: a head keeps an account of each, and no memory it is told of may exhaust its own."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers ``start`` to ``stop``, half open, in the numbering of the whole model."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolInfo:
    """One pool of KV pages of a stage. Filled by the backend when the stage opens; `PagePool` gives it its meaning."""

    kind: Literal["full", "window", "latent", "state"]
    """What a page holds: keys and values, those of a sliding window, a latent of both, or a recurrent state."""
    page_size: int
    """Token slots per page; a state takes one page per sequence whatever this is."""
    num_pages: int
    """At most 2**24."""
    window: int = 0
    """For a window pool: how many tokens a token sees, itself included."""
    rewind: int = 0
    """For a window pool: how many tokens behind its end a sequence can be forked or truncated."""
    shares: bool = True
    """Whether a fork shares full pages; otherwise it copies all of them: each sequence has memory of its own."""
    checkpoint_every: int = 0
    """For a state pool: the scheduler ends prefill chunks at multiples of this, to keep a fork there; 0: nowhere."""


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
    """A token takes a slot in every pool."""
    device: str
    """In words a person knows, such as ``cpu (OpenBLAS 0.3.34)``."""
    dtype: str
    """The dtype activations are computed in: ``float32``, ``float16`` or ``bfloat16``."""
    weight_bytes: int
    weights_version: str
    """Names the content of the weights: changes whenever they do, and only then; part of every prefix key."""
    capabilities: frozenset[Capability] = frozenset()
    takes: tuple[TensorSpec, ...] = ()
    """The hidden tensors it wants; none for a stage that begins with layer 0."""
    gives: tuple[TensorSpec, ...] = ()
    """The hidden tensors it returns; none for a stage that ends with the last layer."""
    saturation_rows: int = 0
    """Decodes in a step beyond which each more takes as much longer, so that nothing is gained by running more
    sequences at once; 0: it does not say."""
    weights_parts: Mapping[str, str] = field(default_factory=dict)
    """What names the content of the weights, part by part: each layer, as ``model.layers.3``, each tensor that belongs
    to none, and each file that the model's source lists. Stages that state one part differently are not served
    together. Empty: the stage does not say; see `identify_weights`."""


class SequenceSpec(Value, frozen=True, kw_only=True):
    """What holds for a whole sequence, said once when it is opened. Filled by the head."""

    prompt_length: Count
    """Tokens of the prompt; what comes after them counts as output."""
    sampling: Sampling
    adapter: str = ""
    """The LoRA adapter, by the name it was loaded under; empty: none."""
    priority: Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)] = 0
    """Lower is served first; for backends that schedule under a stage."""
    salt: str = ""
    """Sequences of different salts share no cache."""


class Open(Value, frozen=True, tag=0):
    """Begin an empty sequence, whose draws are those of ``choice``; see `parallax_core.sampling.draw_key`."""

    seq: Handle
    spec: SequenceSpec
    choice: Count = 0


class Fork(Value, frozen=True, tag=1):
    """Begin ``dst`` as the first ``length`` tokens of ``src``; independent from then on.

    It inherits the spec, except that a ``spec`` given here replaces it (never with another adapter), and its draws are
    those of ``choice``; see `parallax_core.sampling.draw_key`.
    """

    src: Handle
    dst: Handle
    length: Count
    choice: Count = 0
    spec: SequenceSpec | None = None


class Truncate(Value, frozen=True, tag=2):
    """Forget everything of ``seq`` from token ``length`` on."""

    seq: Handle
    length: Count


class Drop(Value, frozen=True, tag=3):
    """Forget ``seq``. Its handle is never used again."""

    seq: Handle


Edit = Open | Fork | Truncate | Drop


class Draw(Value, frozen=True, tag=0):
    """Draw the token after the one at ``offset`` of a row (an index into `Row.tokens`)."""

    offset: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] = 1
    """How many to draw: the j-th is the one a fork with ``choice`` j higher than the sequence's own would draw."""
    top: Counter = -1
    """Also give the log-probability of the drawn tokens, and of this many best ones; -1: neither."""


class Score(Value, frozen=True, tag=1):
    """Give the log-probability of ``token`` coming after the one at ``offset``, and of the ``top`` best ones."""

    offset: Count
    token: Count
    top: Count = 0


class Hidden(Value, frozen=True, tag=2):
    """Give the last hidden state, after the final norm, of the token at ``offset``."""

    offset: Count


Output = Draw | Score | Hidden


class Span(Value, frozen=True):
    """Embeddings in place of tokens on stage 0: ``tensor`` of the batch, from row ``start`` of the tensor on."""

    offset: Count
    """Where in `Row.tokens` the placeholders begin."""
    length: Count
    tensor: Count
    """An index into `StageBatch.embeddings`."""
    start: Count = 0


class Row(Value, frozen=True):
    """Consecutive tokens of one sequence: a prefill chunk (often without outputs) or a decode (one token, a draw)."""

    seq: Handle
    start: Count
    """The sequence's length on this stage before the step; the position of the first token unless told otherwise."""
    tokens: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    outputs: tuple[Output, ...] = ()
    """In order of offset."""
    positions: tuple[Count, ...] = ()
    """One for each token, increasing; empty: ``start``, ``start + 1``, ..."""
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class StageBatch:
    """One step: rows of different sequences, each at most once, prefill and decode mixed."""

    rows: tuple[Row, ...]
    hidden: tuple[Tensor, ...] = ()
    """What the stage before gave: `StageInfo.takes` says which, each of shape [tokens of all rows in order, width]."""
    embeddings: tuple[Tensor, ...] = ()
    """For the spans of the rows, on stage 0: float, shape [length, width]."""
    step: int = 0
    """The number of the step in its epoch; what comes beside it, such as grammar masks, names it."""


class Drawn(Value, frozen=True, tag=0):
    """The answer to a `Draw`."""

    tokens: tuple[Count, ...]
    logprobs: tuple[float, ...] = ()
    """Of the drawn tokens, if asked for."""
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
    """What a step produced."""

    answers: tuple[Answer, ...] = ()
    """One for each output of each row, in row order; none from a stage before the last."""
    tensors: tuple[Tensor, ...] = ()
    """From a stage before the last, the hidden tensors for the next; from the last, those that answers name."""
    free: tuple[int, ...] = ()
    """Free pages of each pool after the step; what differs from the head's ledger means the stage is lost."""


class StageOutput(Protocol):
    """The outcome of a step, possibly still being computed."""

    def wait(self) -> StageResult:
        """Block until the result is there, on the stage's thread. Raises what the computation raised."""


class Stage(Protocol):
    """Layers of one model, ready to run. One and the same thread opens, steps, edits and closes it."""

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself; constant while it is open."""

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order. One that raises changes nothing, and those before it stay.

        Raises:
            KeyError: for a sequence that is not open (or, for `Open` and ``Fork.dst``, already is).
            ValueError: for a length beyond the sequence's.
            Unsupported: for a length the model's state cannot go back to.
            OutOfPages: if a fork needs more pages than are free.
            BackendFailed: if the stage is closed.
        """

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch`` and append its tokens to their sequences.

        A step that raises leaves every sequence at its length before the step.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: if the batch is too large, a row does not start at its sequence's length, or names a token,
                a position or an offset that does not exist.
            OutOfPages: if the rows need more pages than are free.
            BackendFailed: if the computation failed, or the stage is closed. It names the sequences at fault where the
                stage knows them, as those whose hidden states are not finite: then only their requests end.
            StageLost: if nothing more is known of what the stage holds; it is not asked again.
        """

    def close(self) -> None:
        """Release everything. Calling it twice is harmless."""
