"""The performance page is generated from the results of the benchmarks, and hides no figure that is behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rules import cudapage, longcontextpage
from tests.rules.longcontextpage import write_long
from tests.rules.performancepage import (
    PAGE,
    Line,
    list_ratios,
    read_lines,
    read_report,
    write_losses,
    write_page,
    write_row,
)

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
    assert names >= {"vLLM", "SGLang", "llama.cpp", "mlx_lm.server"}


def test_ratio_above_one_means_that_parallax_is_ahead() -> None:
    assert write_row(LINE) == "| 8 requests | avx2 | 150 | 100 | 1.50 | **0.67** |  |  |"
    assert write_losses(list_ratios([LINE])) == [
        "### Where Parallax is behind",
        "",
        "- vLLM 1.0, bfloat16, 8 requests, avx2: time to the first token, 0.67",
    ]


@pytest.mark.parametrize("ours", [20.0, 10.0])
def test_nothing_is_listed_where_parallax_is_not_behind(ours: float) -> None:
    line = replace(LINE, ours={"ttft_ms": ours}, theirs={"ttft_ms": 20.0})
    assert write_losses(list_ratios([line]))[-1] == "Nowhere in these tables."


def test_rivals_have_their_versions_and_llama_has_the_format_of_its_file() -> None:
    def compare(theirs: dict[str, str]) -> dict[str, Any]:
        sides = {"ours": {"device": "compiled, avx2"}, "theirs": theirs}
        medians = {"ours": {"itl_ms": 2.0}, "theirs": {"itl_ms": 1.0}}
        return {"sides": sides, "medians": medians, "machine": {"cpu": "a processor", "cores": 2}, "load": 0.1}

    parts = {
        "int4 against llama.cpp Q4_0: 1": compare({"dtype": "Q4_0", "llama-cpp-python": "1.0", "file": "converted"}),
        "float32 against SGLang: 8": compare({"dtype": "float32", "sglang": "2.0", "torch": "3.0"}),
        "int8 against our bfloat16: 1": compare({"dtype": "bfloat16"}),
    }
    assert write_losses(list_ratios(list(read_report({"parts": parts}))))[2:] == [
        "- SGLang 2.0, float32, 8 requests, avx2: time between tokens, 0.50",
        "- llama.cpp 1.0, int4 and Q4_0, 1 request, avx2: time between tokens, 0.50",
    ]


def test_long_contexts_are_in_tables_of_their_own() -> None:
    side = {"ttft_ms": 2000.0, "itl_ms": 12.34, "memory_bytes": 1_500_000_000, "load": 0.2}
    case = {"ms": 1.5, "gigabytes_per_s": 9.6, "gflops": 101.0}
    attention = {
        f"{title}, {form}": case
        for title in ("1 decode at 8", "chunk of 4 at 8")
        for form in ("float32", "bfloat16", "int8")
    }
    found = write_long(
        {
            "attention": {"load": 0.1, "cases": {"reading memory": {"gigabytes_per_s": 20.0}, **attention}},
            "vLLM: 1024 tokens, 8": side,
            "parallax, int8 keys and values: 8192 tokens, 1": {**side, "prompt_tokens_per_s": 4096.0},
        }
    )
    assert found[9:11] == [
        "| 8,192 | 1 | parallax, int8 keys and values | 4096 | 2.00 | 12.3 | 1.50 | 0.2 |",
        "| 1,024 | 8 | vLLM |  | 2.00 | 12.3 | 1.50 | 0.2 |",
    ]
    assert "| 1 decode at 8 | 1.50 (10 GB/s) | 1.50 (10 GB/s) | 1.50 (10 GB/s) |" in found
    assert "| chunk of 4 at 8 | 1.50 (101 GFLOP/s) | 1.50 (101 GFLOP/s) | 1.50 (101 GFLOP/s) |" in found
    assert write_long({}) == []


def test_long_contexts_and_devices_are_listed_where_parallax_is_behind() -> None:
    ours = {"prompt_tokens_per_s": 300.0, "ttft_ms": 10.0, "itl_ms": 30.0, "memory_bytes": 2}
    theirs = {"prompt_tokens_per_s": 400.0, "ttft_ms": 20.0, "itl_ms": 15.0, "memory_bytes": 3}
    parts = {
        "attention": {},
        "parallax: 1024 tokens, 1": ours,
        "parallax, int8 keys and values: 1024 tokens, 1": theirs,
        "vLLM: 1024 tokens, 1": theirs,
        "llama.cpp: 8192 tokens, 8": theirs,
    }
    report = {"device": {"name": "a device"}, "ratios": {"decode_ms": {"1": 2.0}, "prompt_ms": {"8192": 0.8}}}
    ratios = [*longcontextpage.list_ratios(parts), *cudapage.list_ratios(report)]
    assert write_losses(ratios)[2:] == [
        "- vLLM, context of 1,024 tokens, 1 request: time between tokens, 0.50",
        "- vLLM, context of 1,024 tokens, 1 request: tokens of the prompt per second, 0.75",
        "- transformers on a device, prompt, tokens: 8,192, 0.80",
    ]
