"""Compares the logits of a stage, or of a chain of stages, with those of transformers for the same tokens.

Logits are read as a client could: by draws with the log-probability of every token. Whatever edits a sequence has gone
through, a draw must depend only on the tokens before it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from parallax_core.api import (
    Answer,
    Backend,
    Draw,
    Drawn,
    LayerRange,
    SeqId,
    Stage,
    StagePlan,
    Truncate,
    Unsupported,
    list_borders,
)
from parallax_core.testing.blocks import bring_blocks
from parallax_core.testing.checks.chain import Chain
from tests.support.checkpoints import BASE, LAYERS, SERVED, load_reference, save_family
from tests.support.published import PUBLISHED, respell

VOCAB = int(BASE["vocab_size"])
TOLERANCE = 1e-4
"""The largest allowed difference of two log-probabilities, as a share of the largest logit."""
NETS = "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"
TOLERANCES = dict.fromkeys(NETS, 2 * TOLERANCE)
"""For delta nets, where transformers in float32 is itself from 2.3e-4 to 5.2e-4 away from itself in float64."""
SPLITS: tuple[tuple[int, ...], ...] = ((), *((cut,) for cut in range(1, LAYERS)))
"""The whole model, and every split in two."""
TOGETHER = 16
"""Forks that run in one batch."""


def pair(kinds: Iterable[str], splits: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return each family with each split, as parameters of a test: one of each runs always, and the others nightly."""
    return [
        pytest.param(kind, cuts, marks=() if index % len(splits) == place else pytest.mark.nightly)
        for index, kind in enumerate(kinds)
        for place, cuts in enumerate(splits)
    ]


def make_tokens(count: int, seed: int) -> tuple[int, ...]:
    """Return ``count`` tokens, determined by the seed."""
    source = random.Random(seed)
    return tuple(source.randrange(VOCAB) for _ in range(count))


@dataclass(frozen=True)
class Configured:
    """A backend whose stages are opened with options."""

    backend: Backend
    options: Mapping[str, Any]

    def open_stage(self, plan: StagePlan) -> Stage:
        """Open a stage with the options."""
        return self.backend.open_stage(replace(plan, options=self.options))


class Family:
    """A random checkpoint of a family, and its logits computed by transformers."""

    def __init__(self, kind: str, folder: Path, backend: Backend, **changes: Any) -> None:
        base = PUBLISHED[kind][0] if kind in PUBLISHED else kind
        save_family(base, folder, **changes)
        self.backend = backend
        self.kind = kind
        self.num_layers = int((BASE | SERVED.get(base, {}))["num_hidden_layers"])
        self.folder = folder
        self._model: Any = load_reference(folder)
        if kind in PUBLISHED:
            respell(kind, folder)
        shape = bring_blocks(StagePlan(model=folder), "torch").shape
        self.borders = list_borders(shape) if shape else ()
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def digest(self) -> str:
        """The first digits of the SHA-256 of the files of the model, by name."""
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        found = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files))
        return found.hexdigest()[:12]

    @property
    def legal(self) -> list[int]:
        """The layers that a stage may begin with, but the first."""
        illegal = {border.layer for border in self.borders if border.obstacle}
        return [cut for cut in range(1, self.num_layers) if cut not in illegal]

    def find_refusal(self, cut: int) -> str:
        """Return the error of a stage that begins with a layer; empty: it opens."""
        try:
            with self.open_chain((cut,)):
                return ""
        except Unsupported as error:
            return error.message

    def open_chain(self, cuts: Sequence[int], memory_fraction: float = 0.1) -> Chain:
        """Return the stages that begin at layer 0 and at ``cuts``, as a context manager that closes them."""
        ranges = [LayerRange(*pair) for pair in pairwise((0, *cuts, self.num_layers))]
        plans = [
            StagePlan(model=self.folder, layers=layers, dtype="float32", memory_fraction=memory_fraction)
            for layers in ranges
        ]
        return Chain([self.backend.open_stage(plan) for plan in plans])

    def find_logits(self, histories: Collection[tuple[int, ...]]) -> list[torch.Tensor]:
        """Return the logits after every token of each history, float64 of shape [its length, vocab]."""
        longest: dict[tuple[int, ...], tuple[int, ...]] = {}
        for one, other in pairwise([*sorted(histories), ()]):
            longest[one] = other if other[: len(one)] == one else one
        for one in sorted(histories, reverse=True):  # a prefix of another history is computed with that one
            longest[one] = longest.get(longest[one], longest[one])
        self._compute_logits([one for one in dict.fromkeys(longest.values()) if one not in self._logits])
        return [self._logits[longest[one]][: len(one)] for one in histories]

    def _compute_logits(self, histories: Sequence[tuple[int, ...]]) -> None:
        if not histories:
            return
        size = max(map(len, histories))
        padded = torch.tensor([[*history, *[0] * (size - len(history))] for history in histories])
        with torch.inference_mode():
            self._logits.update(zip(histories, self._model(padded).logits, strict=True))


@dataclass(slots=True)
class RowAnswers:
    """The answers to a row."""

    history: tuple[int, ...]
    """The tokens of its sequence, including those of the row."""
    answers: Sequence[Answer]
    """One answer for each token of the row."""


@dataclass
class Trial:
    """Runs rows, records the answer after each token, and compares all answers at the end."""

    family: Family
    chain: Chain
    tokens: dict[SeqId, list[int]] = field(default_factory=dict)
    seen: list[RowAnswers] = field(default_factory=list)

    def open(self) -> SeqId:
        """Open a sequence."""
        seq = self.chain.open()
        self.tokens[seq] = []
        return seq

    def fork(self, src: SeqId, length: int) -> SeqId:
        """Fork a sequence after its first ``length`` tokens."""
        dst = self.chain.fork(src, length)
        self.tokens[dst] = self.tokens[src][:length]
        return dst

    def truncate(self, seq: SeqId, length: int) -> None:
        """Truncate a sequence to ``length`` tokens."""
        self.chain.edit(Truncate(seq, length))
        del self.tokens[seq][length:]

    def step(self, texts: dict[SeqId, Sequence[int]]) -> None:
        """Append tokens to sequences in one step."""
        draws = {seq: [Draw(offset, 1, VOCAB) for offset in range(len(text))] for seq, text in texts.items()}
        rows = [self.chain.row(seq, text, *draws[seq]) for seq, text in texts.items()]
        answers = list(self.chain.step(*rows).answers)
        for seq, text in texts.items():
            self.tokens[seq] += text
            self.seen.append(RowAnswers(tuple(self.tokens[seq]), answers[: len(text)]))
            del answers[: len(text)]

    def drop(self, *seqs: SeqId) -> None:
        """Drop sequences."""
        self.chain.drop(*seqs)
        for seq in seqs:
            del self.tokens[seq]

    def find_error(self) -> float:
        """Return the largest difference of log-probabilities, as a share of the largest logit."""
        logits = self.family.find_logits([seen.history for seen in self.seen])
        largest = max(float(each.abs().max()) for each in logits)
        errors = [
            float((read_logprobs(seen.answers) - each[-len(seen.answers) :].log_softmax(dim=-1)).abs().max())
            for seen, each in zip(self.seen, logits, strict=True)
        ]
        return max(errors) / largest


def read_logprobs(answers: Sequence[Answer]) -> torch.Tensor:
    """Return the log-probabilities of every token, float64 of shape [answers, vocab]."""
    found = torch.full((len(answers), VOCAB), torch.nan, dtype=torch.float64)
    for place, answer in enumerate(answers):
        assert isinstance(answer, Drawn)
        tokens, logprobs = zip(*answer.top, strict=True)
        found[place, list(tokens)] = torch.tensor(logprobs, dtype=torch.float64)
    assert not found.isnan().any(), "an answer does not name every token"
    return found


def run_chunks(trial: Trial, length: int, size: int) -> None:
    """Run a prompt in chunks of at most ``size``."""
    seq, tokens = trial.open(), make_tokens(length, 1)
    for start in range(0, length, size):
        trial.step({seq: tokens[start : start + size]})
    trial.drop(seq)


def run_ragged(trial: Trial, length: int) -> None:
    """Run sequences of different lengths together: prompts, prompts beside decodes, decodes, and again."""
    source = random.Random(2)
    texts = {trial.open(): make_tokens(length - 5 * index, 10 + index) for index in range(5)}
    first, *others = texts
    places = dict.fromkeys(texts, 0)
    trial.step({first: texts[first][:9]})
    places[first] = 9
    while any(places[seq] < len(texts[seq]) for seq in texts):
        counts = {seq: source.choice((1, 1, 1, 2, 4, 11)) for seq in (first, *others)}
        parts = {seq: texts[seq][places[seq] : places[seq] + count] for seq, count in counts.items()}
        step: dict[SeqId, Sequence[int]] = {seq: tokens for seq, tokens in parts.items() if tokens}
        trial.step(dict(reversed(step.items())) if source.random() < 0.5 else step)  # in every order
        for seq, tokens in step.items():
            places[seq] += len(tokens)
    trial.drop(*texts)


def run_forks(trial: Trial, length: int, lengths: Sequence[int]) -> None:
    """Fork a sequence at ``lengths`` while it grows; then continue the forks together, with other tokens."""
    src, tokens = trial.open(), make_tokens(length, 3)
    forks: list[SeqId] = []
    for at, token in enumerate(tokens):
        if at in lengths:
            forks.append(trial.fork(src, at))
        trial.step({src: (token,)})
    _go_on(trial, forks)
    trial.drop(src)


def run_returns(trial: Trial, length: int, lengths: Sequence[int]) -> int:
    """Fork and truncate a sequence at ``lengths`` below its end; return the number of lengths the pools allow."""
    src = trial.open()
    for start in range(0, length, 16):
        trial.step({src: make_tokens(length, 4)[start : start + 16]})
    allowed = [at for at in lengths if trial.chain.can_rewind(src, at)]
    for part in _divide(allowed, TOGETHER // 2):
        forks = [trial.fork(src, at) for at in part]
        for at in part:
            forks.append(trial.fork(src, length))
            trial.truncate(forks[-1], at)
        _go_on(trial, forks)
    trial.step({src: make_tokens(3, 5)})
    trial.drop(src)
    return len(allowed)


def run_greedy(trial: Trial, count: int) -> int:
    """Append ``count`` greedy tokens to a prompt, one at a time; return how many are those of the reference."""
    draw_greedy(trial, count)
    return count_greedy(trial)


def draw_greedy(trial: Trial, count: int) -> None:
    """Append ``count`` greedy tokens to a prompt, one at a time."""
    seq = trial.open()
    trial.step({seq: make_tokens(5, 6)})
    for _ in range(count):
        best = int(read_logprobs(trial.seen[-1].answers)[-1].argmax())
        trial.step({seq: (best,)})
    trial.drop(seq)


def count_greedy(trial: Trial) -> int:
    """Return how many tokens of `draw_greedy`, which ran last, are those of the reference."""
    history = trial.seen[-1].history
    [logits] = trial.family.find_logits([history])
    return sum(int(each.argmax()) == token for each, token in zip(logits[4:], history[5:], strict=False))


def _go_on(trial: Trial, seqs: Sequence[SeqId]) -> None:
    """Append two tokens and then one to each sequence, a few sequences at a time."""
    for part in _divide(seqs, TOGETHER):
        for count in (2, 1):
            trial.step({seq: make_tokens(count, 100 * count + seq) for seq in part})
        trial.drop(*part)


def _divide(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
