"""The programs of a product fill the multiprocessors of a device, and have the memory that there is."""

from __future__ import annotations

import pytest
import torch

from parallax_backend_torch.product_tiles import BLOCK, RESERVED, Processors, ProductTile, choose_tile, fits

H100 = Processors(count=132, shared_bytes=233472, most_bytes=232448)
A100 = Processors(count=108, shared_bytes=167936, most_bytes=166912)
ADA = Processors(count=128, shared_bytes=102400, most_bytes=101376)
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (960, 576), (64, 64)]


def test_only_matrices_of_whole_blocks_fit() -> None:
    shapes = (64, 64), (64, 32), (96, 64)
    assert [fits(torch.zeros(shape, dtype=torch.bfloat16)) for shape in shapes] == [True, False, False]
    assert not fits(torch.zeros(64, 64, dtype=torch.float16)), "hidden states before a norm may be too large"


@pytest.mark.parametrize("processors", [H100, A100, ADA])
@pytest.mark.parametrize("rows", [1, 8, 16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_programs_divide_the_inputs_and_have_the_memory(
    shape: tuple[int, int], rows: int, processors: Processors
) -> None:
    tile = choose_tile(shape, rows, processors, is_gated=True)
    assert not shape[0] % tile.outputs
    assert not shape[1] % (tile.inputs * tile.splits)
    if not tile.is_row:
        buffers = tile.num_stages - (rows <= 8)
        assert buffers * (BLOCK + max(rows, 8)) * tile.inputs * 2 + RESERVED <= processors.most_bytes


def test_programs_of_an_h100_fill_it_at_once() -> None:
    found = [choose_tile(shape, 8, H100, is_gated=False) for shape in SHAPES[:4]]
    assert [(tile.splits, tile.num_stages) for tile in found] == [(4, 5), (8, 4), (1, 4), (8, 4)]


def test_one_row_takes_small_programs_if_its_inputs_are_many() -> None:
    assert choose_tile((4096, 4096), 1, H100, is_gated=False) == ProductTile(4, 1024, is_row=True)
    assert choose_tile((4096, 4096), 1, H100, is_gated=True) == ProductTile(8, 1024, is_row=True)
    assert not choose_tile((960, 576), 1, H100, is_gated=False).is_row
