"""The performance page is generated from the results of the benchmarks, and hides no figure that is behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rules.performancepage import PAGE, Line, read_lines, write_losses, write_page, write_row

LINE = Line(
    rival="vLLM 1.0",
    format="bfloat16",
    case="8",
    kernels="avx2",
    ours={"tokens_per_s": 150.0, "ttft_ms": 30.0, "itl_ms": 10.0},
    theirs={"tokens_per_s": 100.0, "ttft_ms": 20.0, "itl_p99": 9.0},
    machine="a processor, 2 cores, with avx2",
    load=0.5,
)


def test_tables_of_the_page_are_those_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.performancepage"


def test_page_has_every_rival_of_the_results() -> None:
    names = {line.rival.split()[0] for line in read_lines()}
    assert names >= {"vLLM", "transformers", "llama.cpp", "mlx_lm.server"}


def test_ratio_above_one_means_that_parallax_is_ahead() -> None:
    assert write_row(LINE) == "| 8 requests | avx2 | 150 | 100 | 1.50 | **0.67** |  |  |"
    assert write_losses([LINE]) == [
        "### Where Parallax is behind",
        "",
        "- vLLM 1.0, bfloat16, 8 requests, avx2: time to the first token, 0.67",
    ]


@pytest.mark.parametrize("ours", [20.0, 10.0])
def test_nothing_is_listed_where_parallax_is_not_behind(ours: float) -> None:
    line = replace(LINE, ours={"ttft_ms": ours}, theirs={"ttft_ms": 20.0})
    assert write_losses([line])[-1] == "Nowhere in these tables."
