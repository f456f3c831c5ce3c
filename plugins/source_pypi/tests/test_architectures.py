"""A random model of every architecture, written as llama.cpp writes it: the folder has the same model again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from parallax_core.api import Draw, LayerRange, StagePlan, read_config, silent
from parallax_core.testing.checks.chain import Chain
from parallax_source_pypi.convert import ConversionOptions, convert_gguf
from tests.support.families import make_tokens, read_logprobs
from tests.support.gguf_kin import KIN, Kin
from tests.support.gguf_models import save_original, write_gguf
from tests.support.torch_backend import TorchBackend

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TOKENS = make_tokens(40, 3)


def name_kin(kin: Kin) -> str:
    return kin.family


@contextmanager
def open_chain(folder: Path, *cuts: int) -> Iterator[Chain]:
    count = read_config(folder)["num_hidden_layers"]
    stops = [*cuts, count]
    ranges = [LayerRange(start, stop) for start, stop in zip([0, *cuts], stops, strict=True)]
    exact = {"weights": "float32"}
    plans = [
        StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=0.05, options=exact)
        for layers in ranges
    ]
    with Chain([TorchBackend().open_stage(plan) for plan in plans]) as chain:
        yield chain


def find_logprobs(folder: Path, *cuts: int) -> torch.Tensor:
    """Return the log-probabilities of all tokens after each of `TOKENS`."""
    with open_chain(folder, *cuts) as chain:
        draws = [Draw(offset, 1, 97) for offset in range(len(TOKENS))]
        return read_logprobs(chain.step(chain.row(chain.open(), TOKENS, *draws)).answers)


@pytest.mark.parametrize("kin", KIN, ids=name_kin)
def test_model_of_each_architecture_is_the_one_that_was_written(kin: Kin, tmp_path: Path) -> None:
    names = ("Q8_0", "Q5_0", "Q4_1", "Q5_1", "Q4_0")
    kind = gguf.GGMLQuantizationType["MXFP4" if kin.name == "gpt-oss" else names[KIN.index(kin) % len(names)]]
    original, made = tmp_path / "original", tmp_path / "made"
    made.mkdir()
    save_original(kin, original, kind)
    path = write_gguf(kin, original, tmp_path / "model.gguf", kind)
    convert_gguf(path, made, silent, "convert", ConversionOptions(keeps_blocks=True))
    types = read_config(made)["quantization_config"]["types"]
    assert types
    assert set(types.values()) == {kind.name}
    wanted = find_logprobs(original)
    torch.testing.assert_close(find_logprobs(made), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(find_logprobs(made, 2), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kin", KIN, ids=name_kin)
def test_tensors_keep_names_and_values(kin: Kin, tmp_path: Path) -> None:
    original, made = tmp_path / "original", tmp_path / "made"
    made.mkdir()
    tensors = save_original(kin, original)
    convert_gguf(
        write_gguf(kin, original, tmp_path / "model.gguf"),
        made,
        silent,
        "convert",
        ConversionOptions(keeps_blocks=True),
    )
    found = load_file(made / "model.safetensors")
    assert found.keys() == tensors.keys() - {"lm_head.weight"} | (found.keys() & {"lm_head.weight"})
    for name, values in found.items():
        np.testing.assert_allclose(
            values.numpy(), tensors[name].reshape(values.shape), rtol=0, atol=3e-7 if kin.adds_1 else 0
        )
