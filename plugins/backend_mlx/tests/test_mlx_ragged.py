"""Rows together give what mlx-lm gives each alone, on its own caches: whatever was forked, cut and chunked before."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.cache import Cache
from parallax_backend_mlx.cache_layout import read_layout
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.runtime import KVCache, mx
from parallax_backend_mlx.selftest import choose_grouping
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Draw,
    Drop,
    Fork,
    Open,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    StageBatch,
    StagePlan,
    Truncate,
)

SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
ALL = ("llama", "gemma3_text", "gemma2", "qwen3_next", "deepseek_v3")
TOLERANCE = 1e-3
"""Of log-probabilities: what float32 leaves open between one order of summation and another."""


def open_network(folder: Path) -> Network:
    network = Network(load_network(StagePlan(model=folder), read_checkpoint(folder).tensors)[0])
    network.install_pick()
    return network


class Histories:
    """The tokens of every sequence, and what mlx-lm says of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.network = open_network(folder)
        self.random = random.Random(seed)
        self.tokens: dict[SeqId, list[int]] = {}
        self.fresh = iter(range(1000))

    def make_row(self, seq: SeqId) -> Row:
        """Return a row that goes on with ``seq`` and scores something after its last token and one before."""
        count = self.random.choice((1, 1, 1, 2, 5, 11))
        tokens = tuple(self.random.randrange(97) for _ in range(count))
        offsets = sorted({self.random.randrange(count), count - 1})
        row = Row(seq, len(self.tokens[seq]), tokens, tuple(Score(offset, 5) for offset in offsets))
        self.tokens[seq] += tokens
        return row

    def find_logprobs(self, row: Row) -> list[float]:
        """Return what the scores of a row must be."""
        history = self.tokens[row.seq][: row.start + len(row.tokens)]
        places = [row.start + output.offset for output in row.outputs]
        logits = self.network.run_tokens(history, self.network.make_cache(), places)
        scores: Any = (logits[:, 5] - mx.logsumexp(logits, axis=-1)).tolist()
        return list(scores)

    def edit(self, stage: MlxStage) -> None:
        """Open, fork, cut or drop some sequence, wherever the stage can."""
        held = list(self.tokens)
        fresh = SeqId(next(self.fresh))
        if len(held) < 3:
            stage.edit([Open(fresh, SPEC)])
            self.tokens[fresh] = []
            return
        seq = self.random.choice(held)
        pools, every = stage.account.pools, range(len(self.tokens[seq]) + 1)
        lengths = [at for at in every if all(pool.can_rewind(seq, at) for pool in pools)]
        length = self.random.choice(lengths)
        match self.random.choice(("fork", "fork", "truncate", "drop")):
            case "fork":
                stage.edit([Fork(seq, fresh, length)])
                self.tokens[fresh] = self.tokens[seq][:length]
            case "truncate":
                stage.edit([Truncate(seq, length)])
                del self.tokens[seq][length:]
            case "drop":
                stage.edit([Drop(seq)])
                del self.tokens[seq]


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 2))])
@pytest.mark.parametrize("name", ALL)
def test_mixed_rows_score_as_alone(make_tiny: Callable[..., Path], name: str, seed: int) -> None:
    folder = make_tiny(name)
    stage, histories = MlxBackend().open_ordinary(StagePlan(model=folder)), Histories(folder, seed)
    most = 0
    for _ in range(30):
        histories.edit(stage)
        room = [seq for seq, tokens in histories.tokens.items() if len(tokens) < 100]
        rows = [histories.make_row(seq) for seq in histories.random.sample(room, min(5, len(room)))]
        if not rows:
            continue
        answers = stage.step(StageBatch(tuple(rows))).wait().answers
        found = [answer.logprob for answer in answers if isinstance(answer, Scored)]
        expected = [score for row in rows for score in histories.find_logprobs(row)]
        assert found == pytest.approx(expected, abs=TOLERANCE)
        most = max(most, len(rows))
        for pool in stage.account.pools:
            pool.check()
    assert most >= 4
    stage.close()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", ["full"]),
        ("gemma3_text", ["full", "window"]),
        ("qwen3_next", ["full", "state"]),
        ("deepseek_v3", ["latent"]),
    ],
)
def test_model_runs_its_rows_together(make_tiny: Callable[..., Path], name: str, kinds: list[str]) -> None:
    network = open_network(make_tiny(name))
    layout = read_layout(network)
    assert layout is not None
    assert sorted(kind for kind, _ in layout.list_pools()) == sorted(kinds)
    assert choose_grouping(network, layout) == Grouping(is_batched=True, has_states="state" in kinds, spare_keys=0)


def test_model_that_mixes_up_rows_runs_them_one_by_one(
    make_tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """mlx-lm's gemma2 puts the mask of a row on the heads of another."""
    with caplog.at_level(logging.WARNING):
        stage = MlxBackend().open_ordinary(StagePlan(model=make_tiny("gemma2")))
    assert "rows run one by one, on pages: together they fail with ValueError" in caplog.text
    assert stage.info.pools[0].shares
    stage.close()


class OddCache(KVCache):
    """A cache of a kind nobody knows."""


def test_unknown_cache_is_left_to_mlx_lm(make_tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows run one by one and share no pages, and give the same."""
    folder = make_tiny("llama")

    def make_cache(network: Network) -> Cache:
        return [OddCache() for _ in range(network.num_layers)]  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Network, "make_cache", make_cache)
    stage, histories = MlxBackend().open_ordinary(StagePlan(model=folder)), Histories(folder, 0)
    assert not stage.info.pools[0].shares
    for _ in range(3):
        histories.edit(stage)
    rows = [histories.make_row(seq) for seq in histories.tokens]
    answers = stage.step(StageBatch(tuple(rows))).wait().answers
    found = [answer.logprob for answer in answers if isinstance(answer, Scored)]
    assert found == pytest.approx([score for row in rows for score in histories.find_logprobs(row)], abs=TOLERANCE)
    stage.close()


@pytest.fixture
def stage(make_tiny: Callable[..., Path]) -> Iterator[MlxStage]:
    stage = MlxBackend().open_ordinary(StagePlan(model=make_tiny("llama")))
    yield stage
    stage.close()


def test_answers_come_in_the_order_of_rows(stage: MlxStage) -> None:
    """Whatever the order in which rectangles are run: decodes first, then chunks by their length."""
    counts = (9, 1, 4, 1, 30)
    rows = []
    for number, count in enumerate(counts):
        stage.edit([Open(SeqId(number), SPEC)])
        rows.append(Row(SeqId(number), 0, (number + 3,) * count, (Draw(0), Score(count - 1, 7))))
    together = stage.step(StageBatch(tuple(rows))).wait().answers
    stage.edit([Truncate(SeqId(number), 0) for number in range(len(counts))])
    alone = [answer for row in rows for answer in stage.step(StageBatch((row,))).wait().answers]
    assert [type(answer) for answer in together] == [type(answer) for answer in alone]
    assert together[::2] == tuple(alone[::2])
    scores = [answer.logprob for answer in together if isinstance(answer, Scored)]
    assert scores == pytest.approx([answer.logprob for answer in alone if isinstance(answer, Scored)], abs=TOLERANCE)
    assert len(set(scores)) == len(counts)
