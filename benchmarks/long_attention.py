"""Measures attention to long contexts by itself, beside what memory and arithmetic allow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from parallax_backend_torch.kernels import library
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule, attend
from parallax_backend_torch.store import CacheSpec, keep_as

HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
"""The shape of SmolLM2-135M."""
READ_BYTES = 2**28
POOL_BYTES = 2**28
"""Memory for the pools of decodes: as many layers as fit, so that none is in a cache when its turn comes again."""
TURNS = 5


@dataclass(frozen=True)
class Form:
    """The dtype of keys and values, and whether queries may be rounded to bfloat16."""

    dtype: torch.dtype
    narrow: bool

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in a layer."""
        return keep_as(CacheSpec("full", ((KV_HEADS, DIM),) * 2), self.dtype).num_bytes


FORMS = {
    "float32": Form(torch.float32, narrow=False),
    "bfloat16": Form(torch.bfloat16, narrow=True),
    "int8": Form(torch.int8, narrow=True),
}


def make_pool(form: Form, slots: int) -> Pool:
    """Return random keys and values."""
    shape = (slots, KV_HEADS, DIM)
    if form.dtype != torch.int8:
        return Pool(*(torch.randn(shape).to(form.dtype) for _ in range(2)))
    codes = (torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2))
    return Pool(*codes, *(torch.full(shape[:2], 0.01, dtype=torch.bfloat16) for _ in range(2)))


def time_calls(calls: list[Callable[[], object]]) -> float:
    """Return the median of the seconds of some calls, made in turns."""
    times = []
    for _ in range(TURNS):
        for call in calls:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure_read() -> float:
    """Return the bytes per second that all threads read."""
    native, memory = library.find_library(), torch.zeros(READ_BYTES // 4)
    assert native is not None
    return READ_BYTES / time_calls([lambda: native.plx_read(memory.data_ptr(), memory.numel())])


def measure_attention(form: Form, context: int, rows: int, tokens: int) -> dict[str, Any]:
    """Return the figures of a layer's attention: ``rows`` rows of ``tokens`` queries that end a context."""
    needed = context * rows * form.token_bytes
    layers = max(1, POOL_BYTES // needed) if tokens == 1 else 2
    pools = [make_pool(form, context * rows) for _ in range(layers)]
    pages, query = context // PAGE, torch.randn(rows * tokens, HEADS, DIM)
    table = Rows(
        torch.randperm(pages * rows).int(),
        (torch.arange(rows) * pages).int(),
        torch.full((rows,), context - tokens).int(),
        torch.full((rows,), tokens).int(),
        PAGE,
    )
    rule = Rule(DIM**-0.5, narrow=form.narrow)
    seconds = time_calls([lambda pool=pool: attend(query, pool, table, rule) for pool in pools])  # type: ignore[misc]
    operations = 4 * HEADS * DIM * rows * sum(range(context - tokens + 1, context + 1))
    return {
        "ms": round(1000 * seconds, 3),
        "gigabytes_per_s": round(needed / seconds / 1e9, 2),
        "gflops": round(operations / seconds / 1e9, 1),
    }


def measure_all(contexts: tuple[int, ...], chunk: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each case and its figures: decodes of 1 and 8 rows, and a chunk of a prompt."""
    torch.manual_seed(0)
    yield "reading memory", {"gigabytes_per_s": round(measure_read() / 1e9, 2)}
    for context in contexts:
        for name, form in FORMS.items():
            for title, rows, tokens in (("1 decode", 1, 1), ("8 decodes", 8, 1), (f"chunk of {chunk}", 1, chunk)):
                yield f"{title} at {context}, {name}", measure_attention(form, context, rows, tokens)
