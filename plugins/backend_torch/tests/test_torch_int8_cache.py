"""Keys and values in 8 bits: how they are rounded, attention to them, and what fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from parallax_backend_torch import devices
from parallax_backend_torch.kernels import library
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule, attend, quantize_heads, store
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.store import CacheSpec, keep_as
from parallax_core.api import StagePlan, Unsupported
from tests.support.checkpoints import save_family
from tests.support.torch_backend import TorchBackend

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = 16
SPANS = [(0, 1), (15, 1), (31, 2), (0, 33), (5, 0), (17, 40), (700, 1)]
"""The numbers of tokens before a step and in it, for each row."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_pool(slots: int, heads: int, dim: int, dtype: torch.dtype = torch.int8) -> Pool:
    """Return a pool in which what was never written is not a number, or has a scale that is none."""
    if dtype != torch.int8:
        return Pool(*(torch.full((slots, heads, dim), torch.nan, dtype=dtype) for _ in range(2)))
    scales = (torch.full((slots, heads), torch.nan, dtype=torch.bfloat16) for _ in range(2))
    return Pool(*(torch.zeros((slots, heads, dim), dtype=torch.int8) for _ in range(2)), *scales)


@dataclass
class Case:
    """A step of rows of a pool in which pages lie about."""

    pool: Pool
    rows: Rows
    query: torch.Tensor
    slots: list[torch.Tensor]

    def pick(self, row: int) -> tuple[torch.Tensor, Rows]:
        """Return the queries and the tables of one row."""
        offset, start, length = (
            part[row : row + 1] for part in (self.rows.offsets, self.rows.starts, self.rows.lengths)
        )
        return self.query.split(self.rows.lengths.tolist())[row], Rows(self.rows.pages, offset, start, length, PAGE)

    def expect(self, rule: Rule) -> torch.Tensor:
        """Compute the attention to the numbers that the pool stands for, in double precision."""
        found, spans = [], zip(self.rows.starts.tolist(), self.rows.lengths.tolist(), strict=True)
        parts = self.query.double().split(self.rows.lengths.tolist())
        for query, slots, (start, length) in zip(parts, self.slots, spans, strict=True):
            seen = self.pool.read(slots)
            shared = query.shape[1] // seen.keys.shape[1]
            keys, values = (each.double().repeat_interleave(shared, 1) for each in (seen.keys, seen.values))
            scores = torch.einsum("qhd,shd->hqs", query, keys) * rule.scale
            if rule.soft_cap:
                scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
            ages = torch.arange(start, start + length)[:, None] - torch.arange(start + length)
            scores[:, (ages < 0) | (ages >= (rule.window or 1 << 30))] = -torch.inf
            if rule.sinks is not None:
                sinks = rule.sinks.double()[:, None, None].expand(-1, length, 1)
                scores = torch.cat([scores, sinks], dim=2)
            found.append(torch.einsum("hqs,shd->qhd", torch.softmax(scores, dim=2)[..., : len(keys)], values))
        return torch.cat(found)


def make_case(
    spans: Sequence[tuple[int, int]], shape: tuple[int, int], shared: int, dtype: torch.dtype = torch.int8
) -> Case:
    needs = [-(-(start + length) // PAGE) for start, length in spans]
    order = torch.randperm(sum(needs) + 2, generator=torch.Generator().manual_seed(1)).int()
    offsets = torch.tensor([sum(needs[:row]) for row in range(len(needs))]).int()
    pool, slots = make_pool(len(order) * PAGE, *shape, dtype), []
    for row, (start, length) in enumerate(spans):
        places = torch.arange(start + length)
        slots.append(order[offsets[row] + places // PAGE].long() * PAGE + places % PAGE)
        keys, values = (draw(len(places), *shape, seed=2 * row + part) for part in range(2))
        store(pool, keys, values, slots[-1])
    starts, lengths = (torch.tensor(each).int() for each in zip(*spans, strict=True))
    rows = Rows(order, offsets, starts, lengths, PAGE)
    return Case(pool, rows, draw(int(lengths.sum()), shape[0] * shared, shape[1], seed=99), slots)


def test_store_rounds_each_head_by_its_own_scale(mode: library.Mode) -> None:
    rows = draw(5, 3, 40) * torch.tensor([1e-3, 1.0, 1e30])[:, None]
    rows[0, 1], rows[1, 2] = 0.0, 1e-37
    pool, slots = make_pool(9, 3, 40), torch.tensor([8, 0, 3, 5, 1])
    store(pool, rows, rows * 2, slots)
    assert pool.key_scales is not None
    codes, scales = quantize_heads(rows)
    assert torch.equal(pool.keys[slots], codes)
    assert torch.equal(pool.key_scales[slots], scales)
    far = (pool.read(slots).keys - rows).abs().amax(-1) / rows.abs().amax(-1).clamp(min=1e-30)
    assert float(far.max()) < 0.5 / 127 + 2**-8 / 2
    assert pool.key_scales[[2, 4, 6, 7]].isnan().all()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", ["key", "value"])
def test_number_that_is_none_is_not_lost(mode: library.Mode, number: float, place: str) -> None:
    case = make_case([(3, 3), (40, 1), (0, 33)], (2, 16), 2)
    keys, values = draw(1, 2, 16), draw(1, 2, 16)
    (keys if place == "key" else values)[0, 1, 5] = number
    for slots in case.slots[:2]:
        store(case.pool, keys, values, slots[:1])
    found = attend(case.query, case.pool, case.rows, Rule(0.25))
    assert found[:4, 2:].isnan().all()
    assert found[:4, :2].isfinite().all()
    assert found[4:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("span", [(0, 1), (2, 1), (0, 40)])
def test_query_that_sees_nothing_but_keys_that_are_none_is_none(
    mode: library.Mode, dtype: torch.dtype, span: tuple[int, int]
) -> None:
    case, values = make_case([span], (2, 16), 2, dtype), draw(1, 2, 16)
    keys = torch.full((1, 2, 16), torch.nan)
    keys[:, 0] = 1.0
    for slots in case.slots[0][: span[0] + 1].split(1):
        store(case.pool, keys, values, slots)
    found = attend(case.query, case.pool, case.rows, Rule(0.25))
    assert found[0, 2:].isnan().all()
    assert found[:, :2].isfinite().all()


@pytest.mark.parametrize("shape", [(2, 16), (3, 8), (1, 40), (3, 64), (2, 80), (1, 256), (2, 20)])  # the last: in torch
@pytest.mark.parametrize("shared", [1, 3, 5])
def test_attention_is_that_to_the_numbers_of_the_codes(mode: library.Mode, shape: tuple[int, int], shared: int) -> None:
    case, rule = make_case(SPANS, shape, shared), Rule(shape[1] ** -0.5)
    assert float((attend(case.query, case.pool, case.rows, rule) - case.expect(rule)).abs().max()) < 1e-4


@pytest.mark.parametrize(
    "rule",
    [Rule(0.25, window=1), Rule(0.25, window=37), Rule(0.25, soft_cap=3.0), Rule(0.25, sinks=draw(6) * 5)],
    ids=["window 1", "window 37", "cap", "sinks"],
)
def test_attention_keeps_the_rule(mode: library.Mode, rule: Rule) -> None:
    case = make_case(SPANS, (2, 16), 3)
    case.query *= 3
    assert float((attend(case.query, case.pool, case.rows, rule) - case.expect(rule)).abs().max()) < 3e-4


@pytest.mark.parametrize("isa", ["avx512_bf16"], indirect=True)
def test_narrow_attention_rounds_many_queries_alone(isa: library.Mode) -> None:
    case, rule = make_case(SPANS, (3, 64), 3), Rule(0.125, narrow=True)
    found, wide = (attend(case.query, case.pool, case.rows, each) for each in (rule, replace(rule, narrow=False)))
    few = torch.repeat_interleave(case.rows.lengths <= 2, case.rows.lengths.long())
    assert torch.equal(found[few], wide[few])
    assert not torch.equal(found[~few], wide[~few])
    assert float((found - wide).abs().max()) < 0.03


def test_products_of_codes_are_alike_in_all_instruction_sets(isa: library.Mode) -> None:
    case, rule = make_case([(60, 1), (9, 2)], (3, 64), 3), Rule(0.125)
    found = attend(case.query, case.pool, case.rows, rule)
    library.choose_kernels("plain")
    assert float((found - attend(case.query, case.pool, case.rows, rule)).abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("threads", [1, 3])
def test_row_is_the_same_beside_others_and_on_any_number_of_threads(dtype: torch.dtype, threads: int) -> None:
    case = make_case([(3000, 1), (3, 1), (300, 2), (0, 70)], (3, 64), 3, dtype)
    before = library.count_cores()
    library.set_threads(2)
    found = attend(case.query, case.pool, case.rows, Rule(0.125)).split(case.rows.lengths.tolist())
    library.set_threads(threads)
    alone = [attend(query, case.pool, rows, Rule(0.125)) for query, rows in map(case.pick, range(4))]
    library.set_threads(before)
    assert all(map(torch.equal, found, alone))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("llama")
    save_family("llama", found)
    return found


def test_twice_as_much_context_fits_as_in_bfloat16(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_backend_torch.backend.find_room", lambda _: 2**20)
    pages = []
    plan = StagePlan(model=folder, dtype="bfloat16")
    for each, kept in ((plan, "auto"), (plan, "int8"), (replace(plan, dtype="float32"), "int8")):
        stage = TorchBackend().open_stage(replace(each, options={"kv_cache_dtype": kept}))
        pages.append(stage.info.pools[0].num_pages)
        assert ("int8 keys and values" in stage.info.device) == (kept == "int8")
        stage.close()
    width = 8  # of a head of this model: 8 + 2 bytes instead of 16
    assert pages[1] == pages[2]
    assert pages[1] / pages[0] == pytest.approx(2 * width / (width + 2), rel=0.01)


def test_bytes_of_a_token_count_its_scales() -> None:
    kept = CacheSpec("full", ((3, 64), (3, 64)))
    assert [keep_as(kept, dtype).num_bytes for dtype in (torch.float32, torch.bfloat16, torch.int8)] == [1536, 768, 396]


def test_latents_are_not_kept_in_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_family("deepseek_v3", tmp_path)
    monkeypatch.setattr("parallax_backend_torch.backend.build_network", None)  # refused before weights are read
    with pytest.raises(Unsupported, match=r"kv_cache_dtype is int8.*latents"):
        TorchBackend().open_stage(StagePlan(model=tmp_path, dtype="float32", options={"kv_cache_dtype": "int8"}))


def test_other_devices_refuse_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "choose_device", lambda _: torch.device("cuda"))
    with pytest.raises(Unsupported, match="kv_cache_dtype is int8, which cuda does not have") as caught:
        devices.choose_factory(StagePlan(model=Path()), TorchSettings(kv_cache_dtype="int8"), [])
    assert "PARALLAX_TORCH__KV_CACHE_DTYPE=auto" in caught.value.hint
