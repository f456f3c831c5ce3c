"""What runs on other devices gives what the kernels give; where a device is missing, the same code runs on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallax_backend_torch.arithmetic import attend_rectangles
from parallax_backend_torch.kernels.attention import Pool, Rule, attend
from parallax_backend_torch.kernels.linear import pack, pack_rows
from parallax_backend_torch.layer_factory import DeviceLinear
from parallax_backend_torch.mxfp4 import MicroRows, widen_blocks
from parallax_backend_torch.page_grid import Grid
from parallax_backend_torch.step import SlotMapping, flatten_rows
from parallax_backend_torch.step_upload import StepUpload, open_step_upload
from parallax_core.api import PagePool, PoolInfo, Row, SeqId
from parallax_sampling_torch.tensors import upload

WIDTH, HEADS, KEYS = 16, 4, 2


def make_places(window: int) -> tuple[SlotMapping, Grid, int]:
    """Return the places of a prefill, two decodes and a short chunk, the same as a grid, and the slots there are."""
    info = PoolInfo(kind="window" if window else "full", page_size=4, num_pages=40, window=window)
    pool = PagePool(info)
    rows = [
        Row(SeqId(number), start, tuple(range(count)))
        for number, (start, count) in enumerate(((0, 7), (9, 1), (30, 1), (6, 3)))
    ]
    for row in rows:
        pool.open(row.seq)
        for _ in range(row.start):
            pool.extend(row.seq, 1)
    for row in rows:
        pool.extend(row.seq, len(row.tokens))
    step_upload = StepUpload(rows, [pool])
    extents = step_upload.measure()
    assert [(extent.rows, extent.tokens) for extent in extents] == [(1, 7), (2, 1), (1, 3)]
    [grid] = open_step_upload(upload(step_upload.write(extents)), extents, [info]).grids
    return SlotMapping(flatten_rows(rows, torch.device("cpu")), pool, rows), grid, info.num_pages * info.page_size


RULES = {
    "plain": Rule(0.3),
    "window": Rule(0.3, window=5),
    "soft cap": Rule(0.3, soft_cap=2.0),
    "sinks": Rule(0.3, window=5, sinks=torch.tensor([0.1, -1.0, 2.0, 0.5])),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rectangles_give_what_pages_give(rule: Rule) -> None:
    places, grid, slots = make_places(rule.window)
    assert grid.slots.tolist() == places.slots.tolist()
    torch.manual_seed(0)
    pool = Pool(torch.randn(slots, KEYS, WIDTH), torch.randn(slots, KEYS, WIDTH))
    query = torch.randn(12, HEADS, WIDTH)
    expected = attend(query, pool, places.rows, rule)
    torch.testing.assert_close(attend_rectangles(query, pool, grid, rule), expected, atol=1e-5, rtol=1e-5)


def test_product_of_a_device_is_that_of_the_kernels() -> None:
    torch.manual_seed(0)
    weight, bias, x, residual = torch.randn(64, 24), torch.randn(64), torch.randn(5, 24), torch.randn(5, 64)
    packed, plain = pack(weight, "float32", bias=bias), DeviceLinear(weight, bias)
    torch.testing.assert_close(plain.apply(x, residual), packed.apply(x, residual))
    for gate in ("silu", "gelu_tanh"):
        torch.testing.assert_close(plain.apply_gated(x, gate), packed.apply_gated(x, gate), atol=1e-5, rtol=1e-5)
    ids = torch.tensor([3, 0, 63])
    torch.testing.assert_close(plain.gather(ids), packed.gather(ids))
    assert plain.num_bytes == (64 * 24 + 64) * 4


def test_blocks_of_four_bits_are_widened_exactly() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).reshape(4, 4, 16)
    scales = torch.tensor([[127, 128, 120, 130]] * 4, dtype=torch.uint8)
    found = widen_blocks(blocks, scales).float()
    assert found.shape == (4, 128)
    # The byte 0x10 holds a zero, then a half; in the second row, byte 0x53 of the second group holds 1.5, then 3.
    assert found[0, 32:34].tolist() == [0.0, 0.5 * 2]
    place = 32 + 2 * (0x53 - 0x50)
    assert found[1, place : place + 2].tolist() == [1.5 * 2, 3.0 * 2]
    assert float(found.min()) == -6.0 * 8


def test_blocks_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(120, 134, (2, 6, 3), dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales)  # [experts, in, out]
    found = torch.stack([widen_blocks(*each) for each in zip(blocks, scales, strict=True)])
    torch.testing.assert_close(found, expected.transpose(1, 2).contiguous())
    rows = MicroRows(blocks[0], scales[0])
    assert rows.are_codes
    assert torch.equal(pack_rows(rows, "int8").to_dense(), found[0].float())
    scales[0, 0, 0] = 200
    assert not MicroRows(blocks[0], scales[0]).are_codes


@pytest.mark.needs_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_families_run_on_cuda(kind: str, tmp_path: Path) -> None:
    from tests.support.families import Family, Trial, run_chunks, run_ragged
    from tests.support.torch_backend import TorchBackend

    family = Family(kind, tmp_path, TorchBackend())
    with family.open_chain(()) as chain:
        assert chain.first.device.startswith("CUDA")
        trial = Trial(family, chain)
        run_chunks(trial, 36, 5)
        run_ragged(trial, 36)
        assert trial.find_error() < 1e-3
