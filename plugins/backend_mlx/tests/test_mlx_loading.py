"""Loading: what is refused, what is converted, and how it is told."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx import loading
from parallax_backend_mlx.backend import SATURATION_ROWS, MlxBackend
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import flatten_tree, load_model, mx
from parallax_core.api import BackendFailed, DType, LayerRange, ParallaxError, StagePlan, Unit, Unsupported

TOKENS = tuple(range(40))
INDEX = "model.safetensors.index.json"


@pytest.fixture
def broken(llama: Path, tmp_path: Path) -> Path:
    """A copy of a model, to be damaged."""
    return Path(shutil.copytree(llama, tmp_path / "model"))


def open_stage(folder: Path) -> None:
    MlxBackend().open_stage(StagePlan(model=folder)).close()


def test_loading_tells_how_far_it_is(llama: Path) -> None:
    told: list[tuple[str, int, int | None]] = []

    def progress(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        assert unit == "bytes"
        told.append((task, done, total))

    stage = MlxBackend().open_stage(StagePlan(model=llama, progress=progress))
    stage.close()
    assert {task for task, _, _ in told} == {f"load {llama.name}"}
    assert {total for _, _, total in told} == {stage.info.weight_bytes}
    done = [count for _, count, _ in told]
    assert done == sorted(set(done))
    assert done[0] == 0
    assert done[-1] == stage.info.weight_bytes
    assert len(done) >= 1 + 3 + 1


def test_weights_take_four_bytes_each_on_a_cpu(llama: Path) -> None:
    folder_bytes = (llama / "model.safetensors").stat().st_size
    stage = MlxBackend().open_stage(StagePlan(model=llama))
    assert 0.9 * folder_bytes < stage.info.weight_bytes < folder_bytes
    stage.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_asked_for_is_computed_in(llama: Path, dtype: DType) -> None:
    stage = MlxBackend().open_stage(StagePlan(model=llama, dtype=dtype))
    assert stage.info.dtype == dtype
    stage.close()


@pytest.mark.parametrize("layers", [(0, 4), (2, 2), (-1, 2), (3, 4)])
def test_layers_that_are_not_there_are_refused(llama: Path, layers: tuple[int, int]) -> None:
    with pytest.raises(Unsupported, match=f"layers {layers[0]}-{layers[1]}") as caught:
        MlxBackend().open_stage(StagePlan(model=llama, layers=LayerRange(*layers)))
    assert "0-3" in caught.value.hint


def test_all_layers_are_the_whole_model(llama: Path) -> None:
    stage = MlxBackend().open_stage(StagePlan(model=llama, layers=LayerRange(0, 3)))
    assert (stage.info.takes, stage.info.gives) == ((), ())
    stage.close()


def test_unknown_architecture_is_refused_by_name(broken: Path) -> None:
    change_config(broken, model_type="nosuch")
    with pytest.raises(Unsupported, match="nosuch"):
        open_stage(broken)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def spoil_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0<html>not found</html>")


def lose_tensor(folder: Path) -> None:
    path = str(folder / "model.safetensors")
    weights = dict(mx.load(path))  # type: ignore[arg-type]
    del weights["model.layers.1.mlp.up_proj.weight"]
    mx.eval(weights)
    mx.save_safetensors(path, weights)


def change_tensor(folder: Path, change: Callable[[mx.array], mx.array]) -> None:
    path = str(folder / "model.safetensors")
    weights = dict(mx.load(path))  # type: ignore[arg-type]
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = change(weights[name])
    mx.eval(weights)
    mx.save_safetensors(path, weights)


def store_as_fp8(folder: Path) -> None:
    """Give the weights the scales that checkpoints in 8-bit floats have, which no module of mlx-lm's model has."""
    path = str(folder / "model.safetensors")
    weights = dict(mx.load(path))  # type: ignore[arg-type]
    weights["model.layers.1.mlp.up_proj.weight_scale_inv"] = mx.ones((1, 1))
    mx.eval(weights)
    mx.save_safetensors(path, weights)
    change_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})


def drop_setting(folder: Path, name: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config[name]
    path.write_text(json.dumps(config))


def put_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def lose_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_weights, "cut short"),
        (spoil_header, "not a safetensors file"),
        (lose_tensor, "model.layers.1.mlp.up_proj.weight"),
        (lose_shard, "lacks model-00002-of-00002.safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no file model"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
        (lambda folder: change_config(folder, hidden_size=64, head_dim=16), "do not fit together"),
        (lambda folder: change_config(folder, num_hidden_layers=None), "gives no number of layers"),
        (lambda folder: change_config(folder, num_hidden_layers=10**12), "has 1000000000000 layers"),
        (lambda folder: change_config(folder, num_attention_heads=10**12), "do not fit together"),
        (lambda folder: change_tensor(folder, lambda array: array[1:]), r"up_proj.weight \(in model.safetensors\)"),
        (lambda folder: change_tensor(folder, lambda array: array.astype(mx.uint8)), "up_proj.weight .* as uint8"),
        (store_as_fp8, "weight_scale_inv"),
        (lambda folder: drop_setting(folder, "num_attention_heads"), "config.json has no 'num_attention_heads'"),
        (put_folder, "cannot read .*model.safetensors: Is a directory"),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": [1]}'), "does not give the file of each"),
    ],
)
def test_damaged_folder_is_an_error_with_a_hint(broken: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(broken)
    with pytest.raises(ParallaxError, match=words) as caught:
        open_stage(broken)
    assert caught.value.hint


def test_model_that_mlx_lm_cannot_run_is_an_error_with_a_hint(broken: Path) -> None:
    """The weights fit, but a window of no length cannot slide."""
    change_config(broken, layer_types=["full_attention", "sliding_attention", "sliding_attention"])
    with pytest.raises(BackendFailed, match="cannot run this model") as caught:
        open_stage(broken)
    assert caught.value.hint


def test_model_larger_than_memory_is_refused_before_it_is_read(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_room", lambda: 10_000)
    with pytest.raises(ParallaxError, match=r"of memory, but only 10 KiB are free"):
        open_stage(llama)


def test_no_room_for_a_page_is_refused(llama: Path) -> None:
    with pytest.raises(ParallaxError, match="one page of each pool takes"):
        MlxBackend().open_stage(StagePlan(model=llama, memory_fraction=1e-9))


def test_step_has_the_tokens_that_are_asked_for(llama: Path) -> None:
    stage = MlxBackend().open_stage(StagePlan(model=llama, memory_fraction=1e-3, max_batch_tokens=77))
    assert (stage.info.max_batch_tokens, stage.info.saturation_rows) == (77, SATURATION_ROWS)
    stage.close()


def quantise(folder: Path) -> None:
    """Quantise a model as mlx-lm does."""
    from mlx_lm.utils import quantize_model, save_model

    config = json.loads((folder / "config.json").read_text())
    model, _ = load_model(folder, model_config={"rope_theta": config["rope_parameters"]["rope_theta"]})
    model.set_dtype(mx.bfloat16)
    model, changed = quantize_model(model, config, group_size=32, bits=8)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(changed))


def test_quantised_weights_are_dequantised_on_a_cpu(
    broken: Path, llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantise(broken)
    with caplog.at_level(logging.INFO, logger="parallax_backend_mlx"):
        model_slice, _ = load_network(StagePlan(model=broken), read_checkpoint(broken).tensors)
    assert sum("dequantised" in record.message for record in caplog.records) == 1
    parameters = model_slice.model.parameters()  # type: ignore[no-untyped-call]
    assert {array.dtype for _, array in flatten_tree(parameters)} == {mx.float32}
    exact, _ = load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)
    left, right = Network(model_slice), Network(exact)
    found = left.run_tokens(TOKENS, left.make_cache(), range(40))
    expected = right.run_tokens(TOKENS, right.make_cache(), range(40))
    error: Any = mx.mean(mx.abs(found - expected)) / mx.mean(mx.abs(expected))
    assert 0 < error.item() < 0.1
