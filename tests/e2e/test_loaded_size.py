"""What a backend says that a model takes is what the model takes once it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_core.api import DType, LayerRange, StagePlan
from parallax_core.models.stages import measure_loaded, open_stage
from parallax_core.plugins.host import PluginHost
from tests.support.checkpoints import save_family
from tests.support.quantised import FORMATS, write_pair
from tests.support.tiny_adapters import list_sizes, make_matrices, write_adapter

ROOT = Path(__file__).parents[2]

WIDE = {"hidden_size": 128, "intermediate_size": 384, "vocab_size": 512, "head_dim": 32, "moe_intermediate_size": 128}
PAIRS = [
    *(("llama", method, "torch", dtype) for method in ("", *FORMATS) for dtype in ("auto", "float32", "bfloat16")),
    *(("llama", method, "mlx", dtype) for method in ("", "mlx", "gptq") for dtype in ("auto", "float16")),
    *((kind, "", backend, "auto") for kind in ("qwen3", "qwen3_moe", "gpt_oss") for backend in ("torch", "mlx")),
]
MOST = 0.03
"""The share by which what is told may differ from what is loaded."""


@pytest.mark.parametrize(("kind", "method", "backend", "dtype"), PAIRS)
def test_size_is_that_of_the_loaded_weights(tmp_path: Path, kind: str, method: str, backend: str, dtype: DType) -> None:
    folder = tmp_path / "plain"
    save_family(kind, folder, **WIDE)
    folder = write_pair(folder, tmp_path, method)[0] if method else folder
    host = PluginHost.prepare()
    offer, plan = host.backends().get(backend), StagePlan(model=folder, dtype=dtype, memory_fraction=0.01)
    size = measure_loaded(host, offer, plan)
    assert size is not None
    for layers in (None, LayerRange(1, 3)):
        stage = open_stage(host, offer, StagePlan(model=folder, dtype=dtype, memory_fraction=0.01, layers=layers))
        loaded = stage.info.weight_bytes
        stage.close()
        assert size.weigh(layers) == pytest.approx(loaded, rel=MOST)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "deepseek_v3"])
def test_size_of_weights_that_torch_rounds_is_that_of_the_loaded_ones(tmp_path: Path, kind: str, weights: str) -> None:
    """Of int4, attention and both ends are in 8 bits."""
    save_family(kind, tmp_path, **WIDE | MEDIUM)
    host, plan = PluginHost.prepare(), StagePlan(model=tmp_path, memory_fraction=0.01, options={"weights": weights})
    offer = host.backends().get("torch")
    size, stage = measure_loaded(host, offer, plan), open_stage(host, offer, plan)
    assert size is not None
    assert size.weigh() == pytest.approx(stage.info.weight_bytes, rel=MOST)
    stage.close()


OPEN = """
import sys
from pathlib import Path
from parallax_core.api import DType, LayerRange, StagePlan
from parallax_core.models.stages import open_stage
from parallax_core.plugins.host import PluginHost
from tests.e2e.test_loaded_size import read_memory

folder, small, backend, dtype = sys.argv[1:]
host = PluginHost.prepare()
offer = host.backends().get(backend)
plans = [StagePlan(model=Path(each), dtype=dtype, memory_fraction=1e-4) for each in (small, folder)]
first = open_stage(host, offer, plans[0])
before = read_memory()
second = open_stage(host, offer, plans[1])
print(read_memory() - before, second.info.weight_bytes)
"""
BUFFERS = 16 * 2**20
"""Bytes of the arenas of kernels, the pages and the objects of a stage."""
LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 8192, "head_dim": 64, "num_attention_heads": 16}


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the /proc of Linux")
@pytest.mark.parametrize(
    ("method", "backend", "dtype"),
    [
        ("", "torch", "float32"),
        ("", "torch", "bfloat16"),
        ("awq", "torch", "bfloat16"),
        ("", "mlx", "auto"),
    ],
)
def test_process_grows_by_what_was_told(tmp_path: Path, method: str, backend: str, dtype: DType) -> None:
    folder = tmp_path / "plain"
    save_family("llama", folder, **LARGE)
    save_family("llama", tmp_path / "small")
    folder = write_pair(folder, tmp_path, method)[0] if method else folder
    host = PluginHost.prepare()
    size = measure_loaded(host, host.backends().get(backend), StagePlan(model=folder, dtype=dtype))
    command = [sys.executable, "-c", OPEN, str(folder), str(tmp_path / "small"), backend, dtype]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    grown, loaded = map(int, ran.stdout.split())
    assert size is not None
    assert size.weigh() == pytest.approx(loaded, rel=MOST)
    assert (1 - MOST) * size.weigh() <= grown <= (1 + MOST) * size.weigh() + BUFFERS


ADAPT = """
import sys
from pathlib import Path
from parallax_adapters.store import AdapterStore
from parallax_core.api import Draw, Open, Row, Sampling, SeqId, SequenceSpec, StageBatch, StagePlan
from parallax_core.models.stages import measure_loaded, open_stage
from parallax_core.plugins.host import PluginHost
from tests.e2e.test_loaded_size import read_memory

folder, backend, dtype, *adapters = sys.argv[1:]
host = PluginHost.prepare()
offer, plan = host.backends().get(backend), StagePlan(model=Path(folder), dtype=dtype, memory_fraction=1e-4)
keys = [AdapterStore().add(Path(each)) for each in adapters]
stage = open_stage(host, offer, plan)

def answer(numbered):
    for seq, key in numbered:
        spec = SequenceSpec(prompt_length=4, sampling=Sampling(temperature=0), adapter=key)
        stage.edit([Open(SeqId(seq), spec)])
    stage.step(StageBatch(tuple(Row(SeqId(seq), 0, (1, 2, 3, 4), (Draw(3),)) for seq, _ in numbered))).wait()

answer([(1, ""), (2, "")])
before = read_memory()
answer(list(enumerate(keys, start=3)))
print(read_memory() - before, sum(measure_loaded(host, offer, plan).adapters))
"""
SLOTS, RANK = 4, 64
MEDIUM = {"hidden_size": 512, "intermediate_size": 1408, "head_dim": 64, "num_attention_heads": 8}


def read_memory() -> int:
    """Return the bytes that this process has, without those of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the /proc of Linux")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("torch", "bfloat16"),
        pytest.param("torch", "float32", marks=pytest.mark.nightly),
        pytest.param("mlx", "auto", marks=pytest.mark.nightly),
    ],
)
def test_adapters_take_what_is_kept_for_them(tmp_path: Path, backend: str, dtype: DType) -> None:
    save_family("llama", model := tmp_path / "model", **MEDIUM)
    sizes = list_sizes(model, ("_proj",))
    adapters = [write_adapter(tmp_path / f"{seed}", make_matrices(sizes, RANK, seed), r=RANK) for seed in range(SLOTS)]
    changes = {"RESERVE": "true", "MAX_ADAPTERS": str(SLOTS), "MAX_RANK": str(RANK)}
    settings = {f"PARALLAX_ADAPTERS__{name}": value for name, value in changes.items()}
    command = [sys.executable, "-c", ADAPT, str(model), backend, dtype, *map(str, adapters)]
    env = {**os.environ, **settings, "PARALLAX_HOME": str(tmp_path / "home")}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=ROOT)
    grown, kept = map(int, ran.stdout.split())
    assert kept > 8 * 2**20
    assert 0.85 * kept <= grown <= 1.1 * kept + 6 * 2**20
