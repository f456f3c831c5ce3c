"""A toy model of integers with the stage contract, and the same model computed directly.

`Toy` is the model: a function of tokens. `Toy.open` gives a stage of it, for all layers or some, that keeps what it
remembers in pages and reads it back through them. What the stage draws must be what `Toy.continuation` computes; that
one knows nothing of pages, batches, chunks and stages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypedDict, Unpack

from parallax_core.api import (
    Answer,
    BackendFailed,
    Draft,
    Draw,
    Drop,
    Edit,
    Fork,
    Hidden,
    LayerRange,
    LeasedStage,
    Open,
    Outcome,
    Output,
    ParallaxError,
    PoolInfo,
    Row,
    Sampling,
    Score,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    StageResult,
    State,
    Tensor,
    TensorSpec,
    Truncate,
    answer_draw,
    answer_score,
    check_batch,
    check_edit,
    check_room,
    draw,
    mask_logits,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.answer import History
from parallax_core.testing.arithmetic import embed_token, finish_token, gather_notes, note_token, score_tokens
from parallax_core.testing.memory import edit_memories
from parallax_core.testing.paged import PagedLayers, States, pack_states, show_state

GREEDY = Sampling(temperature=0)
ROUNDING = 1e-9
"""Added to a number of pages, so that a share of 1 / 3 of 3 pages is one."""
HIDDEN = TensorSpec(width=1, dtype="int64")

Masks = Mapping[tuple[SeqId, int], Tensor]
"""The masks of a step, by sequence and index of the output in its row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of a stage of the toy."""

    page_size: int = 4
    num_pages: int = 8
    """The number of pages in each pool except the state pool."""
    max_batch_tokens: int = 8
    context: int = 64
    rewind: int = 0
    """`PoolInfo.rewind` of the window pool."""
    shares: bool = True
    state_pages: int = 8
    checkpoint_every: int = 0
    """`PoolInfo.checkpoint_every` of the state pool."""
    steps_ahead: int = 0
    """`StageInfo.steps_ahead`; each step is still computed as it is submitted."""

    def scale(self, factor: float) -> Sizes:
        """Return the sizes with ``factor`` times the pages, and at least one for states.

        Raises:
            ParallaxError: if no page is left.
        """
        pages, states = (int(number * factor + ROUNDING) for number in (self.num_pages, self.state_pages))
        if not pages:
            raise ParallaxError(f"{factor:.3g} of {self.num_pages} pages are none", "ask for a larger share")
        return replace(self, num_pages=pages, state_pages=max(1, states))


class SizeOptions(TypedDict, total=False):
    """The fields of `Sizes`, as arguments."""

    page_size: int
    num_pages: int
    max_batch_tokens: int
    context: int
    rewind: int
    shares: bool
    state_pages: int
    checkpoint_every: int
    steps_ahead: int


@dataclass(frozen=True, slots=True)
class Toy:
    """The model: layers of the kinds given, over a vocabulary of less than 131,071 tokens."""

    layers: tuple[PoolKind, ...] = ("full", "full")
    vocab: int = 97
    window: int = 3
    """The number of tokens a window layer attends to, the last one included."""

    def open(self, layers: LayerRange | None = None, **sizes: Unpack[SizeOptions]) -> ToyStage:
        """Return a stage of some layers, or all of them; see `Sizes` for what else may be given."""
        return ToyStage(self, layers, Sizes(**sizes))

    def open_leased(self, layers: LayerRange | None = None, **sizes: Unpack[SizeOptions]) -> LeasedStage:
        """Return a stage of some layers, or all of them, that serves through leases; see `Sizes` for its memory."""
        return lease_stages(ToyStage, self, layers, Sizes(**sizes))

    def states(self, tokens: Sequence[int], positions: Sequence[int] = ()) -> list[int]:
        """Return the hidden state of each token after the last layer, at positions of their own if given."""
        return list(self._follow(zip(tokens, positions or range(len(tokens)), strict=True)))

    def logits(self, tokens: Sequence[int], positions: Sequence[int] = ()) -> list[float]:
        """Return the logits of the token after ``tokens``."""
        return score_tokens(self.states(tokens, positions)[-1], self.vocab)

    def continuation(
        self, prompt: Sequence[int], length: int, sampling: Sampling = GREEDY, choice: int = 0
    ) -> list[int]:
        """Return the ``length`` tokens that follow ``prompt``, computed alone."""
        output: list[int] = []
        tokens = chain(prompt, output)  # each drawn token follows
        for number, hidden in enumerate(self._follow((token, place) for place, token in enumerate(tokens))):
            if len(output) == length:
                break
            if number + 1 >= len(prompt):
                output.append(draw(score_tokens(hidden, self.vocab), Draft(sampling, prompt, output, choice)))
        return output

    def _follow(self, tokens: Iterable[tuple[int, int]]) -> Iterator[int]:
        """Yield the hidden state of each token after the last layer, given tokens with their positions."""
        notes: list[list[int]] = [[] for _ in self.layers]
        gathered = [0] * len(self.layers)
        for token, place in tokens:
            hidden = embed_token(token, place)
            for layer, kind in enumerate(self.layers):
                notes[layer].append(note_token(kind, layer, hidden, place))
                if kind == "window":
                    gathered[layer] = gather_notes(notes[layer][-self.window :])
                else:
                    gathered[layer] = gather_notes(notes[layer][-1:], gathered[layer])
                hidden = finish_token(hidden, gathered[layer])
            yield hidden


class ToyStage:
    """A stage of a toy, for one thread; see `parallax_core.api.Stage`.

    Beyond the contract, for tests: records of its calls, and callables that are called before them.
    """

    layers_type = PagedLayers

    def __init__(self, toy: Toy, layers: LayerRange | None = None, sizes: Sizes | None = None) -> None:
        self._info = describe_toy(toy, layers, sizes or Sizes())
        self.toy = toy
        self.layers = self.layers_type(toy.layers, self._info.layers, self._info.pools)
        self.histories: dict[SeqId, History] = {}
        self.batches: list[StageBatch] = []
        """The steps it has begun."""
        self.forks: list[Fork] = []
        """The forks it has made."""
        self.closed = False
        self.before_open: Callable[[SequenceSpec], None] = lambda _: None
        """Called with the spec of an `Open`, or of a `Fork` that has one."""
        self.before_step: Callable[[StageBatch], None] = lambda _: None
        """Called with a legal batch; what it raises leaves the stage as it was."""
        self.masks: Masks = {}
        """The masks of the last step."""
        self._thread: int | None = None

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._info

    def restate(self, **changes: Any) -> None:  # noqa: ANN401 -- fields of `StageInfo`
        """State other properties than the true ones; see `StageInfo`."""
        self._info = replace(self._info, **changes)

    @property
    def free(self) -> tuple[int, ...]:
        """Free pages of each pool."""
        return tuple(memory.pool.num_free for memory in self.layers.memories)

    @property
    def tokens(self) -> dict[SeqId, int]:
        """The length of each open sequence."""
        return {seq: len(history.tokens) for seq, history in self.histories.items()}

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits`` in order. One that raises changes nothing, and those before it stay.

        Raises:
            KeyError: for a sequence that is not open, or one to be opened that is.
            ValueError: for a length beyond the sequence's, or a fork with another adapter.
            Unsupported: for a length a window or a state cannot go back to, or an adapter.
            OutOfPages: if a fork needs a page and none is free.
        """
        self._check_usable()
        for edit in edits:
            self.apply_edit(edit)

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`.

        Raises:
            KeyError: for a sequence that is not open.
            ValueError: for a batch that does not fit the model, the sequences or itself.
            Unsupported: for embeddings.
            OutOfPages: if a pool has too few free pages.
        """
        self._check_usable()
        check_batch(batch, self.tokens, self.info)
        check_room([memory.pool for memory in self.layers.memories], batch.rows)
        self.batches.append(batch)
        self.before_step(batch)
        self.masks = read_masks(batch)
        hidden = self.layers.run(batch)
        if self.info.gives:
            result = StageResult((), (pack_states(chain(*hidden)),), self.free)
        else:
            result = StageResult(*self.answer_rows(batch.rows, hidden), self.free)
        for row in batch.rows:
            self.histories[row.seq].tokens += row.tokens
        return Outcome(result)

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        self.closed = True
        self.histories.clear()

    def make_drafts(self, row: Row, output: Draw) -> list[Draft]:
        """Return the input of each draw of an output."""
        history = self.histories[row.seq]
        return [history.draft(row.tokens[: output.offset + 1], choice) for choice in range(output.count)]

    def _check_usable(self) -> None:
        if self.closed:
            raise BackendFailed("the stage is closed", "open the stage again")
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise BackendFailed("the stage is used by two threads", "use one")

    def apply_edit(self, edit: Edit) -> None:
        """Apply one edit."""
        specs = {seq: history.spec for seq, history in self.histories.items()}
        check_edit(edit, specs, [memory.pool for memory in self.layers.memories], self.info)
        if isinstance(edit, Open | Fork) and edit.spec:
            self.before_open(edit.spec)
        edit_memories(self.layers.memories, edit)
        match edit:
            case Open(seq, spec, choice):
                self.histories[seq] = History(spec, choice)
            case Fork(src, dst, length, choice, spec):
                source = self.histories[src]
                self.forks.append(edit)
                self.histories[dst] = History(spec or source.spec, choice, source.tokens[:length])
            case Truncate(seq, length):
                del self.histories[seq].tokens[length:]
            case Drop(seq):
                del self.histories[seq]

    def answer_rows(self, rows: Sequence[Row], hidden: States) -> tuple[tuple[Answer, ...], tuple[Tensor, ...]]:
        """Return the answers to all outputs, and the tensors they name, given the hidden states of each row."""
        answers: list[Answer] = []
        tensors: list[Tensor] = []
        for row, states in zip(rows, hidden, strict=True):
            for output in row.outputs:
                answers.append(self.answer_output(row, output, states[output.offset], len(tensors)))
                if isinstance(output, Hidden):
                    tensors.append(self.show_hidden(output, states))
        return tuple(answers), tuple(tensors)

    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        """Return the tensor of an answer, given the hidden states of the row."""
        end = output.offset + 1
        return show_state(sum(states[end - output.summed : end]) if output.summed else states[output.offset])

    def answer_output(self, row: Row, output: Output, state: int, num_tensors: int) -> Answer:
        """Return the answer to an output, given the hidden state there, and how many tensors answers name so far."""
        if isinstance(output, Hidden):
            return State(num_tensors)
        place = next(index for index, each in enumerate(row.outputs) if each is output)
        logits = mask_logits(score_tokens(state, self.toy.vocab), self.masks.get((row.seq, place)))
        if isinstance(output, Score):
            return answer_score(output, logits)
        return answer_draw(output, logits, self.make_drafts(row, output))


def lease_stages(stage: type[ToyStage], toy: Toy, layers: LayerRange | None, sizes: Sizes) -> LeasedStage:
    """Return a stage whose leases are of the class ``stage``; all layers take the same memory for a page."""
    info = describe_toy(toy, layers, sizes)

    def open_part(part: LayerRange, memory_share: float) -> ToyStage:
        return stage(toy, part, sizes.scale(memory_share * len(info.layers) / len(part)))

    return LeasedStage(info, open_part, lambda: None)


def read_masks(batch: StageBatch) -> Masks:
    """Return the masks of a batch, waiting for them."""
    if batch.masks is None:
        return {}
    found = batch.masks.wait()
    places = ((row.seq, index) for row in batch.rows for index in range(len(row.outputs)))
    return {place: found[number] for number, place in enumerate(places) if number in found}


def describe_toy(toy: Toy, layers: LayerRange | None, sizes: Sizes) -> StageInfo:
    """Return the properties of a stage of some or all layers.

    Raises:
        ValueError: if the model has no such layers.
    """
    layers = LayerRange(0, len(toy.layers)) if layers is None else layers
    if not 0 <= layers.start < layers.stop <= len(toy.layers):
        raise ValueError(f"the toy has {len(toy.layers)} layers, and none in {layers.start}-{layers.stop}")
    kinds = dict.fromkeys(toy.layers[layers.start : layers.stop])
    return StageInfo(
        layers=layers,
        num_layers=len(toy.layers),
        vocab_size=toy.vocab,
        context_length=sizes.context,
        max_batch_tokens=sizes.max_batch_tokens,
        pools=tuple(_describe_pool(toy, kind, sizes) for kind in kinds),
        device="toy",
        dtype="int64",
        weight_bytes=0,
        weights_version="1",
        capabilities=frozenset({"logprobs", "hidden", "hidden_sums", "positions", "masks"}),
        takes=(HIDDEN,) if layers.start else (),
        gives=(HIDDEN,) if layers.stop < len(toy.layers) else (),
        steps_ahead=sizes.steps_ahead,
    )


def _describe_pool(toy: Toy, kind: PoolKind, sizes: Sizes) -> PoolInfo:
    is_state, is_window = kind == "state", kind == "window"
    return PoolInfo(
        kind=kind,
        page_size=1 if is_state else sizes.page_size,
        num_pages=sizes.state_pages if is_state else sizes.num_pages,
        window=toy.window if is_window else 0,
        rewind=sizes.rewind if is_window else 0,
        shares=sizes.shares,
        checkpoint_every=sizes.checkpoint_every if is_state else 0,
    )
