"""Divides the products of few rows among the multiprocessors of a CUDA device; see `triton_products`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

BLOCK = 64
"""The outputs of a program."""
LEAST_ROWS = 8
"""The least rows of a product in Triton; others are masked."""
ROW_OUTPUTS, ROW_INPUTS = 4, 1024
"""The work of a program at a time, if there is one row."""
LEAST_STAGES, USUAL_STAGES, MOST_STAGES = 3, 4, 5
MOST_PROGRAMS = 4
"""The most programs of a multiprocessor."""
RESERVED = 1024
"""The bytes of shared memory that a program takes for itself."""
LEAST_INPUTS = 64
"""The inputs that a program multiplies at a time, at least."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """The work of a program."""

    outputs: int
    inputs: int
    """The inputs at a time."""
    splits: int = 1
    """The parts of the inputs."""
    num_stages: int = 4
    """How many blocks of the matrix are in the memory of a multiprocessor."""
    is_row: bool = False
    """Whether there is one row, which needs no tensor cores."""


@dataclass(frozen=True, slots=True)
class Processors:
    """The multiprocessors of a device."""

    count: int
    shared_bytes: int
    """The memory of a multiprocessor, which its programs share."""
    most_bytes: int
    """The most that one of them may take."""


@cache
def find_processors(where: torch.device) -> Processors:
    """Return the multiprocessors of a device."""
    found = torch.cuda.get_device_properties(where)
    shared = found.shared_memory_per_multiprocessor, found.shared_memory_per_block_optin
    return Processors(found.multi_processor_count, *shared)


def fits(weight: torch.Tensor) -> bool:
    """Return whether a matrix [out, in] may be that of a `Product`; hidden states may be too large for float16."""
    outputs, inputs = weight.shape
    return weight.dtype == torch.bfloat16 and not outputs % BLOCK and not inputs % LEAST_INPUTS


@cache
def choose_tile(shape: tuple[int, int], rows: int, processors: Processors, is_gated: bool) -> ProductTile:  # noqa: FBT001
    """Return the work of a program of a product.

    Of several rows, the programs should fill the device evenly and all at once, each with several blocks of the matrix
    on their way.

    Args:
        shape: the numbers of outputs and inputs.
        rows: the number of rows, a power of two.
        processors: those of the device.
        is_gated: whether half of the outputs are gates.
    """
    outputs, inputs = shape
    if rows == 1 and not inputs % ROW_INPUTS:
        return ProductTile(ROW_OUTPUTS * (2 if is_gated else 1), ROW_INPUTS, is_row=True)
    at_once = 2 * LEAST_INPUTS if not inputs % (2 * LEAST_INPUTS) else LEAST_INPUTS
    stage_bytes = (BLOCK + max(rows, LEAST_ROWS)) * at_once * torch.bfloat16.itemsize
    most_stages = min(MOST_STAGES, (processors.most_bytes - RESERVED) // stage_bytes)
    best, most = ProductTile(BLOCK, at_once, num_stages=min(USUAL_STAGES, most_stages)), (0.0, 0)
    for splits in (1, 2, 4, 8):
        programs, steps = outputs // BLOCK * splits, inputs // at_once
        each = -(-programs // processors.count)
        # Products of few rows keep one block of the matrix in registers.
        stages = (processors.shared_bytes // each - RESERVED) // stage_bytes + (rows <= LEAST_ROWS)
        share = round(programs / (each * processors.count), 1)
        is_possible = each <= MOST_PROGRAMS and stages >= LEAST_STAGES and not steps % splits and steps >= 4 * splits
        if is_possible and (share, each) > most:
            best, most = ProductTile(BLOCK, at_once, splits, min(stages, most_stages)), (share, each)
    return best
