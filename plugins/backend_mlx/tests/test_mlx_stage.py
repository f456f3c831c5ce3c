"""The stage keeps its promises: chunked equals at once, forks are independent, failures change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.cache_layout import read_layout
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.paged_runner import PagedRunner
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.runtime import KVCache, mx
from parallax_backend_mlx.serial_runner import SerialRunner
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Account,
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    Sampling,
    Score,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageLost,
    StagePlan,
    StageResult,
    Truncate,
    Unsupported,
)

PROMPT = tuple((7 * n * n + 3 * n + 5) % 97 for n in range(60))
GREEDY = Sampling(temperature=0)
ONE, TWO, THREE = SeqId(1), SeqId(2), SeqId(3)


@pytest.fixture(scope="module")
def shared(llama: Path) -> Iterator[MlxStage]:
    stage = MlxBackend().open_ordinary(StagePlan(model=llama))
    yield stage
    stage.close()


@pytest.fixture
def stage(shared: MlxStage) -> Iterator[MlxStage]:
    yield shared
    shared.edit([Drop(seq) for seq in list(shared.account.entries)])


def open_sequence(stage: MlxStage, seq: SeqId, sampling: Sampling = GREEDY) -> None:
    stage.edit([Open(seq, SequenceSpec(prompt_length=len(PROMPT), sampling=sampling))])


def run_row(stage: MlxStage, seq: SeqId, start: int, tokens: Sequence[int]) -> list[int]:
    """Run one row and draw after each of its tokens."""
    row = Row(seq, start, tuple(tokens), tuple(Draw(offset) for offset in range(len(tokens))))
    return list_tokens(stage.step(StageBatch((row,))).wait())


def list_tokens(result: StageResult) -> list[int]:
    """Return the tokens of all draws in order."""
    return [token for answer in result.answers if isinstance(answer, Drawn) for token in answer.tokens]


def run_chunks(stage: MlxStage, seq: SeqId, size: int, start: int = 0) -> list[int]:
    chunks = [(at, PROMPT[at : at + size]) for at in range(start, len(PROMPT), size)]
    return [token for at, tokens in chunks for token in run_row(stage, seq, at, tokens)]


def run_whole(stage: MlxStage, sampling: Sampling = GREEDY) -> list[int]:
    """Return what is drawn after each token of the prompt, in a sequence of its own."""
    seq = SeqId(1000)
    open_sequence(stage, seq, sampling)
    drawn = run_chunks(stage, seq, len(PROMPT))
    stage.edit([Drop(seq)])
    return drawn


def test_stage_says_what_it_is(shared: MlxStage) -> None:
    info = shared.info
    assert (info.layers, info.num_layers, info.vocab_size, info.context_length) == (LayerRange(0, 3), 3, 97, 1024)
    assert info.pools == (PoolInfo(kind="full", page_size=16, num_pages=256 * 1024 // 16),)
    assert info.dtype == "float32"
    assert info.capabilities == {"adapters", "logprobs", "hidden", "hidden_sums", "masks"}
    assert info.device.startswith("cpu (")


@pytest.mark.parametrize("size", [1, 7, 16, 59])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1, top_k=20, top_p=0.9, seed=5)])
def test_prompt_in_chunks_equals_prompt_at_once(stage: MlxStage, size: int, sampling: Sampling) -> None:
    expected = run_whole(stage, sampling)
    open_sequence(stage, ONE, sampling)
    assert run_chunks(stage, ONE, size) == expected
    assert len(set(expected)) > 10


def test_tokens_depend_on_what_came_before(stage: MlxStage) -> None:
    open_sequence(stage, ONE)
    open_sequence(stage, TWO)
    run_row(stage, TWO, 0, PROMPT[::-1])
    run_row(stage, ONE, 0, PROMPT)
    assert run_row(stage, ONE, 60, PROMPT[:20]) != run_row(stage, TWO, 60, PROMPT[:20])


def test_batch_of_mixed_rows_equals_rows_alone(stage: MlxStage) -> None:
    expected = run_whole(stage)
    for seq, length in ((ONE, 10), (TWO, 25), (THREE, 0)):
        open_sequence(stage, seq)
        if length:
            stage.step(StageBatch((Row(seq, 0, PROMPT[:length]),))).wait()
    rows = (
        Row(ONE, 10, PROMPT[10:11], (Draw(0),)),
        Row(TWO, 25, PROMPT[25:40], (Draw(3), Draw(14))),
        Row(THREE, 0, PROMPT[:33]),
    )
    assert list_tokens(stage.step(StageBatch(rows)).wait()) == [expected[10], expected[28], expected[39]]
    assert run_chunks(stage, THREE, 60, start=33) == expected[33:]


def test_sequence_grows_over_pages(make_llama: Callable[..., Path]) -> None:
    stage = MlxBackend().open_ordinary(StagePlan(model=make_llama()))
    tokens = PROMPT * 10
    open_sequence(stage, ONE)
    open_sequence(stage, TWO)
    at_once = [token for at in range(0, 600, 120) for token in run_row(stage, ONE, at, tokens[at : at + 120])]
    assert [token for at in range(0, 600, 50) for token in run_row(stage, TWO, at, tokens[at : at + 50])] == at_once
    stage.close()


@pytest.mark.parametrize("length", [0, 1, 30, 59, 60])
def test_fork_continues_and_leaves_its_source_alone(stage: MlxStage, length: int) -> None:
    expected = run_whole(stage)
    open_sequence(stage, ONE)
    run_chunks(stage, ONE, 60)
    stage.edit([Fork(ONE, TWO, length)])
    run_row(stage, TWO, length, [1, 2, 3])
    other = run_row(stage, ONE, 60, PROMPT[:10])
    stage.edit([Truncate(TWO, length)])
    assert run_chunks(stage, TWO, 60, start=length) == expected[length:]
    stage.edit([Truncate(ONE, 60)])
    assert run_row(stage, ONE, 60, PROMPT[:10]) == other
    stage.edit([Drop(ONE)])
    assert run_row(stage, TWO, 60, PROMPT[:10]) == other


def test_fork_inherits_the_spec(stage: MlxStage) -> None:
    sampling = Sampling(temperature=3, seed=77)
    expected = run_whole(stage, sampling)
    open_sequence(stage, ONE, sampling)
    run_row(stage, ONE, 0, PROMPT[:30])
    stage.edit([Fork(ONE, TWO, 20)])
    assert run_chunks(stage, TWO, 60, start=20) == expected[20:]
    assert expected != run_whole(stage, Sampling(temperature=3, seed=78))


@pytest.mark.parametrize("length", [0, 13, 60])
def test_truncate_forgets_what_came_after(stage: MlxStage, length: int) -> None:
    expected = run_whole(stage)
    open_sequence(stage, ONE)
    run_chunks(stage, ONE, 60)
    run_row(stage, ONE, 60, (5, 6, 7))
    stage.edit([Truncate(ONE, length)])
    assert run_chunks(stage, ONE, 60, start=length) == expected[length:]


def test_edits_of_unknown_sequences_raise(stage: MlxStage) -> None:
    open_sequence(stage, ONE)
    edits: list[Edit] = [Fork(TWO, THREE, 0), Truncate(TWO, 0), Drop(TWO), Fork(ONE, ONE, 0)]
    edits.append(Open(ONE, SequenceSpec(prompt_length=1, sampling=GREEDY)))
    for edit in edits:
        with pytest.raises(KeyError):
            stage.edit([edit])
    for edit in (Fork(ONE, TWO, 1), Truncate(ONE, 1), Truncate(ONE, -1)):
        with pytest.raises(ValueError, match="length"):
            stage.edit([edit])


def test_dropped_sequence_is_gone(stage: MlxStage) -> None:
    open_sequence(stage, ONE)
    stage.edit([Drop(ONE)])
    with pytest.raises(KeyError):
        stage.step(StageBatch((Row(ONE, 0, (1,)),)))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row(ONE, 1, (1,)), "starts at 1"),
        (Row(ONE, 0, ()), "no tokens"),
        (Row(ONE, 0, (97,)), "token id"),
        (Row(ONE, 0, (-1,)), "token id"),
        (Row(ONE, 0, (1,), (Draw(1),)), "offset"),
        (Row(ONE, 0, (1,), (Score(-1, 3),)), "offset"),
        (Row(ONE, 0, (1,), (Score(0, 97),)), "scores"),
        (Row(ONE, 0, (1,), (Draw(0, 0),)), "less than once"),
        (Row(ONE, 0, (1,) * 129), "138 tokens"),
    ],
)
def test_bad_row_is_refused_before_anything_runs(stage: MlxStage, row: Row, words: str) -> None:
    open_sequence(stage, ONE)
    open_sequence(stage, TWO)
    with pytest.raises(ValueError, match=words):
        stage.step(StageBatch((Row(TWO, 0, PROMPT[:9]), row)))
    assert run_chunks(stage, TWO, 60) == run_whole(stage)


def test_sequence_cannot_be_in_a_batch_twice(stage: MlxStage) -> None:
    open_sequence(stage, ONE)
    with pytest.raises(ValueError, match="two rows"):
        stage.step(StageBatch((Row(ONE, 0, (1,)), Row(ONE, 0, (1,)))))


def test_sequence_ends_at_the_context(make_llama: Callable[..., Path]) -> None:
    stage = MlxBackend().open_ordinary(StagePlan(model=make_llama(max_position_embeddings=8)))
    open_sequence(stage, ONE)
    with pytest.raises(ValueError, match="context of 8"):
        run_row(stage, ONE, 0, PROMPT[:9])
    assert len(run_row(stage, ONE, 0, PROMPT[:8])) == 8
    stage.close()


class BrokenLayer:
    """A layer that fails when it is told to, after the layers before it have run."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.runs_left = layer, 0
        self.error: BaseException = RuntimeError("out of memory")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs_left -= 1
        if self.runs_left == 0:
            raise self.error
        return self.layer(*args, **kwargs)


def load_broken(folder: Path) -> tuple[Network, BrokenLayer]:
    model, _ = load_network(StagePlan(model=folder), read_checkpoint(folder).tensors)
    network = Network(model)
    broken = BrokenLayer(model.model.layers[1])
    model.model.layers[1] = broken
    return network, broken


def open_broken(shared: MlxStage, folder: Path) -> tuple[MlxStage, BrokenLayer]:
    network, broken = load_broken(folder)
    account, layout = Account(shared.info), read_layout(network)
    assert layout is not None
    runner = PagedRunner(network, layout, account.pools, Grouping(is_batched=False, has_states=False, spare_keys=0))
    return MlxStage(account, runner), broken


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_failed_step_leaves_every_sequence_as_it_was(shared: MlxStage, llama: Path, error: BaseException) -> None:
    expected = run_whole(shared)
    stage, broken = open_broken(shared, llama)
    for seq, length in ((ONE, 20), (TWO, 40)):
        open_sequence(stage, seq)
        run_row(stage, seq, 0, PROMPT[:length])
    # The second row to run fails in its second layer, when the first one is through.
    broken.runs_left, broken.error = 2, error
    free = stage.account.free
    batch = StageBatch((Row(ONE, 20, PROMPT[20:30], (Draw(9),)), Row(TWO, 40, PROMPT[40:50], (Draw(9),))))
    with pytest.raises(BackendFailed if isinstance(error, Exception) else KeyboardInterrupt):
        stage.step(batch)
    assert stage.account.free == free
    assert list_tokens(stage.step(batch).wait()) == [expected[29], expected[49]]
    assert run_chunks(stage, ONE, 60, start=30) == expected[30:]
    stage.close()


class SpoiledCache(KVCache):
    """A cache that cannot be read any more once it is spoiled."""

    spoiled = False

    @property
    def state(self) -> Any:
        if self.spoiled:
            raise RuntimeError("bad memory")
        return self.keys, self.values, self.offset

    @state.setter
    def state(self, state: Any) -> None:
        self.keys, self.values, self.offset = state
        SpoiledCache.spoiled = True


def test_stage_that_cannot_go_back_says_it_is_lost(
    shared: MlxStage, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, broken = load_broken(llama)
    cache = [*network.make_cache()[:2], SpoiledCache()]  # type: ignore[no-untyped-call]
    monkeypatch.setattr(network, "make_cache", lambda: cache)
    stage = MlxStage(Account(shared.info), SerialRunner(network))
    open_sequence(stage, ONE)
    broken.runs_left = 1
    with pytest.raises(StageLost, match="could not be restored"):
        run_row(stage, ONE, 0, PROMPT)
    with pytest.raises(StageLost, match="the stage is lost"):
        open_sequence(stage, TWO)


def test_close_is_harmless_twice_and_final(llama: Path) -> None:
    stage = MlxBackend().open_ordinary(StagePlan(model=llama))
    open_sequence(stage, ONE)
    stage.close()
    stage.close()
    with pytest.raises(BackendFailed, match="closed"):
        open_sequence(stage, TWO)


def test_stage_lives_on_any_one_thread(shared: MlxStage, llama: Path) -> None:
    drawn: list[int] = []

    def work() -> None:
        stage = MlxBackend().open_ordinary(StagePlan(model=llama))
        drawn.extend(run_whole(stage, Sampling(temperature=2, seed=1)))
        stage.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert drawn == run_whole(shared, Sampling(temperature=2, seed=1))


def test_prefill_pays_no_head(llama: Path) -> None:
    """The hidden states of the wanted places only go into the head."""
    network = Network(load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)[0])
    network.install_pick()
    assert "hidden" in network.list_capabilities(), "the head could not be found"
    logits = network.run_tokens(PROMPT, network.make_cache(), [3, 50])
    assert logits.shape == (2, 97)
    everything = network.run_tokens(PROMPT, network.make_cache(), range(60))
    assert mx.allclose(logits, everything[mx.array([3, 50])], atol=1e-4).item()


def test_state_that_cannot_go_back_is_refused(tmp_path: Path) -> None:
    folder = make_mamba(tmp_path)
    stage = MlxBackend().open_ordinary(StagePlan(model=folder))
    expected = run_whole(stage)
    open_sequence(stage, ONE)
    run_row(stage, ONE, 0, PROMPT[:30])
    with pytest.raises(Unsupported, match="cannot rewind sequence 1 of 30 tokens to 29"):
        stage.edit([Truncate(ONE, 29)])
    with pytest.raises(Unsupported):
        stage.edit([Fork(ONE, TWO, 10)])
    stage.edit([Fork(ONE, TWO, 30)])
    assert run_chunks(stage, TWO, 10, start=30) == expected[30:]
    assert run_chunks(stage, ONE, 60, start=30) == expected[30:]
    stage.close()


def make_mamba(folder: Path) -> Path:
    """Write a tiny random Mamba by way of transformers."""
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4, intermediate_size=32)
    MambaForCausalLM(config).save_pretrained(folder)
    return folder


def test_state_that_cannot_go_back_says_so_in_its_pools(tmp_path: Path) -> None:
    stage = MlxBackend().open_ordinary(StagePlan(model=make_mamba(tmp_path)))
    assert [pool.kind for pool in stage.info.pools] == ["state"]
    open_sequence(stage, ONE)
    free = stage.step(StageBatch((Row(ONE, 0, tuple(PROMPT[:30])),))).wait().free
    assert free == tuple(pool.num_pages - 1 for pool in stage.info.pools)
    stage.edit([Drop(ONE)])
    stage.close()
