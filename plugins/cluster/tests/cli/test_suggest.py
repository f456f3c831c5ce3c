from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command_here import run_here

DESK = """
[[nodes]]
name = "desk"
device = "RTX 4090"
"""
LAPTOPS = """
[network]
kind = "1gbe"

[[nodes]]
name = "one"
device = "M4"
memory_gb = 12

[[nodes]]
name = "two"
device = "M4"
memory_gb = 12
"""
TINY = '[[nodes]]\nname = "pi"\nmemory_gb = 0.05\ntflops = 0.05\nbandwidth_gb_s = 10\n'


def run_suggest(folder: Path, nodes: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "nodes.toml").write_text(nodes)
    return run_here("models", "suggest", "--nodes", str(folder / "nodes.toml"), *options)


def read_found(folder: Path, nodes: str, *options: str) -> dict[str, Any]:
    done = run_suggest(folder, nodes, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_model_is_suggested_in_the_best_format_that_fits_and_is_fast(tmp_path: Path) -> None:
    found = read_found(tmp_path, DESK)
    by_name = {each["name"]: each for each in found["suggestions"]}
    assert by_name["Qwen3-8B"]["format"] == "bfloat16"
    assert by_name["Qwen3-14B"]["bits_per_weight"] == 8.5
    assert by_name["Qwen3-32B"]["format"] == "Q4_K_M"
    assert "GLM-5" in found["too_large"]
    assert not by_name.keys() & set(found["too_large"])
    sizes = [each["parameters"] for each in found["suggestions"]]
    assert sizes == sorted(sizes, reverse=True)
    memory = 24e9
    for each in found["suggestions"]:
        assert each["weights_bytes"] == pytest.approx(each["parameters"] * each["bits_per_weight"] / 8, rel=0.02)
        assert each["weights_bytes"] < memory
        assert each["nodes"] == ["desk"]
        assert each["tokens_per_s"] >= 8 or each["bits_per_weight"] < 5


def test_speed_is_that_of_the_plan(tmp_path: Path) -> None:
    [found] = [each for each in read_found(tmp_path, DESK, "--all")["suggestions"] if each["model"] == "Qwen/Qwen3-8B"]
    options = ("--params", "8.19B", "--layers", "36", "--concurrency", "1", "--objective", "latency", "--json")
    done = run_here("cluster", "plan", "Qwen3-8B", "--nodes", str(tmp_path / "nodes.toml"), *options)
    [plan] = json.loads(done.stdout)["plans"]
    assert found["tokens_per_s"] == pytest.approx(1 / plan["token_s"], rel=0.05)


def test_model_may_need_several_machines(tmp_path: Path) -> None:
    found = {each["name"]: each for each in read_found(tmp_path, LAPTOPS)["suggestions"]}
    assert found["Qwen3-30B-A3B"]["nodes"] == ["one", "two"]
    alone = read_found(tmp_path, LAPTOPS.rpartition("[[nodes]]")[0])
    assert "Qwen3-30B-A3B" in alone["too_large"]


def test_format_of_more_bits_must_be_as_fast_as_asked(tmp_path: Path) -> None:
    alone = LAPTOPS.rpartition("[[nodes]]")[0]
    slow = {each["name"]: each["format"] for each in read_found(tmp_path, alone)["suggestions"]}
    fast = {each["name"]: each["format"] for each in read_found(tmp_path, alone, "--min-speed", "20")["suggestions"]}
    assert fast.keys() == slow.keys()
    assert (slow["SmolLM3-3B"], fast["SmolLM3-3B"]) == ("bfloat16", "Q8_0")


def test_of_formats_that_are_all_slow_one_is_nearly_the_fastest(tmp_path: Path) -> None:
    slow = '[[nodes]]\nname = "old"\nmemory_gb = 30\ntflops = 0.3\nbandwidth_gb_s = 15\n'
    every = [each for each in read_found(tmp_path, slow, "--all")["suggestions"] if each["name"] == "Qwen3-8B"]
    [best] = [each for each in read_found(tmp_path, slow)["suggestions"] if each["name"] == "Qwen3-8B"]
    assert (best["format"], every[-1]["format"]) == ("Q4_K_M", "MLX 4 bits")
    assert every[-1]["tokens_per_s"] * 0.9 < best["tokens_per_s"] < every[-1]["tokens_per_s"]


def test_table_names_what_to_serve_what_is_here_and_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    form = {"format": "bfloat16", "model": str(here), "bits": 16}
    (tmp_path / "more.json").write_text(
        json.dumps({"models": [{"name": "Mine", "params": "1B", "layers": 16, "forms": [form]}]})
    )
    done = run_suggest(tmp_path, DESK, "--models", str(tmp_path / "more.json"))
    assert done.returncode == 0, done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("Mine ")]
    assert str(here) in row
    assert "Qwen/Qwen3-8B" in done.stdout
    assert "too large: " in done.stdout
    assert "30.5 B, 3 B active" in done.stdout


def test_nothing_fits_a_machine_without_memory(tmp_path: Path) -> None:
    done = run_suggest(tmp_path, TINY)
    assert done.returncode == 1
    assert "none of the models fits" in done.stderr


def test_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text('{"models": [{"name": 5}]}')
    done = run_suggest(tmp_path, DESK, "--models", str(tmp_path / "more.json"))
    assert done.returncode == 2
    assert "models[0].name" in done.stderr
