"""Tests that a loaded model gives the same results for rows together as alone: not all do.

Three sequences of different lengths are prefilled, decoded and mixed: on mlx-lm's own caches, one row at a time; on
pages; and on pages with the rows together. The outputs are compared.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from parallax_backend_mlx.cache_layout import Layout, make_hidden
from parallax_backend_mlx.network import TOLERANCE, Network
from parallax_backend_mlx.paged_runner import PagedRunner
from parallax_backend_mlx.results import Runner
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.serial_runner import SerialRunner
from parallax_core.api import Draw, Open, PagePool, PoolInfo, PoolKind, Row, Sampling, SeqId, SequenceSpec

PAGES = 16
PAGE_SIZE = 4
"""Tokens per page, few enough that the sequences take several pages."""
STEPS = (((0, 5), (1, 3), (2, 5)), ((0, 1), (1, 1), (2, 2)), ((0, 1), (1, 1), (2, 1)))
"""The rows of each step: the index of the sequence and the number of its new tokens."""

logger = logging.getLogger(__name__)


def choose_grouping(network: Network, layout: Layout) -> Grouping | None:
    """Return how rows may be grouped on pages, or None if this model does not work on pages; logs the choice."""
    expected = _try_runner(network, SerialRunner(network), [])
    errors: list[str] = []
    for is_batched in (True, False):
        grouping = Grouping(is_batched=is_batched, has_states=layout.has_states, spare_keys=0)
        pools = [PagePool(_make_info(*pool)) for pool in layout.list_pools()]
        try:
            found = _try_runner(network, PagedRunner(network, layout, pools, grouping), pools)
            error = _find_error(found, expected, network)
        except Exception as failure:  # noqa: BLE001  # model files differ; one that fails runs another way
            error = f"they fail with {type(failure).__name__}: {failure}"
        if not error:
            _report(errors)
            return grouping
        errors.append(error)
    logger.warning("rows run one by one, on caches of mlx-lm: on pages %s", errors[-1])
    return None


def _report(errors: Sequence[str]) -> None:
    if errors:
        logger.warning("rows run one by one, on pages: together %s", errors[0])
    else:
        logger.debug("rows run together: they give the same results as alone")


def _make_info(kind: PoolKind, window: int) -> PoolInfo:
    return PoolInfo(kind=kind, page_size=1 if kind == "state" else PAGE_SIZE, num_pages=PAGES, window=window)


def _try_runner(network: Network, runner: Runner, pools: Sequence[PagePool]) -> list[mx.array]:
    """Return the outputs of each step, shape [outputs, width]."""
    mx.random.seed(0)
    spec = SequenceSpec(prompt_length=1, sampling=Sampling())
    for seq in (SeqId(0), SeqId(1), SeqId(2)):
        runner.edit(Open(seq, spec), [pool.edit(Open(seq, spec)) for pool in pools])
    found = []
    for rows in _list_steps(network.shape.vocab_size):
        hidden = make_hidden(network, 1, sum(len(row.tokens) for row in rows))
        copies = [[copy for row in rows for copy in pool.extend(row.seq, len(row.tokens))] for pool in pools]
        result = runner.run(rows, None if hidden is None else hidden[0], copies)
        part = result.logits if network.is_last else result.hidden
        assert part is not None
        found.append(part)
    return found


def _list_steps(vocab_size: int) -> Iterator[tuple[Row, ...]]:
    lengths = [0, 0, 0]
    for step in STEPS:
        rows = []
        for number, count in step:
            start = lengths[number]
            tokens = tuple((31 * (start + index) + 17 * number + 7) % vocab_size for index in range(count))
            rows.append(Row(SeqId(number), start, tokens, (Draw(count - 1),)))
            lengths[number] += count
        yield tuple(rows)


def _find_error(found: Sequence[mx.array], expected: Sequence[mx.array], network: Network) -> str:
    """Return the error in ``found``, if any.

    In the smaller dtypes a single output may differ by much, as when another expert is chosen; so the median counts.
    """
    errors: list[float] = []
    for part, wanted in zip(found, expected, strict=True):
        scale = mx.maximum(mx.max(mx.abs(wanted), axis=-1), 1e-6)
        shares: Any = (mx.max(mx.abs(part - wanted), axis=-1) / scale).astype(mx.float32).tolist()
        errors += shares
    dtype = network.shape.dtype
    error = max(errors) if dtype == mx.float32 else statistics.median(errors)
    return "" if error <= TOLERANCE[dtype] else f"they differ by {error:.1g} of the largest value"
