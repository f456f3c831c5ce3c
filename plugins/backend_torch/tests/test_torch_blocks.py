"""Blocks of GGUF files: read as the gguf package reads them, kept as they are, and served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from parallax_backend_torch.kernels import linear
from parallax_backend_torch.kernels.ggml import LAYOUTS, Form
from parallax_core.api import (
    DType,
    LayerRange,
    Open,
    ParallaxError,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    SourceContext,
    StageBatch,
    StageInfo,
    StagePlan,
    Unsupported,
    silent,
)
from parallax_formats.gguf.blocks import SCALES
from parallax_source_pypi.convert import convert_gguf
from parallax_source_pypi.local import GgufSource
from tests.support.tinyllama import TinyLlama, default_values
from tests.support.torch_backend import TorchBackend

WIDTH, HEADS, KV_HEADS, LAYERS = 256, 4, 2, 2
EMPTY = slice(0, 0)
SIZES = {"Q8_0": 5e-4, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 3e-5, "IQ4_XS": 2e-5}
"""The size of scales that makes numbers about 0.05, for types whose codes or scales of scales are large."""
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
NEAR = ("Q4_K", "Q5_K", "IQ4_XS")
"""Types whose scales are rounded to float16."""
MIXED: dict[str, Form] = {
    "token_embd": "Q6_K",
    "attn_q": "Q4_K",
    "attn_k": "Q5_K",
    "attn_v": "Q6_K",
    "attn_output": "Q4_0",
    "ffn_gate": "Q4_1",
    "ffn_up": "Q4_1",
    "ffn_down": "Q8_0",
}
"""Types as files mix them."""
Bytes = npt.NDArray[np.uint8]


def draw_blocks(form: Form, height: int, width: int, seed: int = 0) -> Bytes:
    """Return random bytes that are a matrix, with scales that make its numbers about 0.05."""
    random, layout = np.random.default_rng(seed), LAYOUTS[form]
    blocks = random.integers(0, 256, (height, width // layout.weights, layout.size), np.uint8)
    if form == "MXFP4":
        blocks[..., 0] = random.integers(118, 124, blocks.shape[:2])
    if form == "IQ1_M":  # whose scale lies in four halves of bytes
        blocks[..., 55] = 0x20 | blocks[..., 55] & 15
    for place in range(SCALES.get(form, EMPTY).start, SCALES.get(form, EMPTY).stop, 2):
        size = SIZES.get(form, 1e-2)
        low = form in {"Q4_1", "Q5_1"} and place
        scale = random.uniform(0.5, 1.5, blocks.shape[:2]) * (-7.5 * size if low else size)
        blocks[..., place : place + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(height, -1)


def unpack_blocks(blocks: Bytes, form: Form) -> torch.Tensor:
    """Return what the gguf package makes of blocks."""
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[form]))


@pytest.mark.parametrize("form", EXACT)
def test_blocks_are_what_the_gguf_package_reads(form: Form) -> None:
    blocks = draw_blocks(form, 40, 512)
    assert torch.equal(linear.pack_blocks(torch.from_numpy(blocks), form).to_dense(), unpack_blocks(blocks, form))


@pytest.mark.parametrize("form", NEAR)
def test_blocks_with_scales_of_scales_are_right_to_float16(form: Form) -> None:
    blocks = draw_blocks(form, 40, 512)
    found, wanted = linear.pack_blocks(torch.from_numpy(blocks), form).to_dense(), unpack_blocks(blocks, form)
    # A product of scales is rounded to 11 bits; the offset is one more such product.
    reach = find_largest(wanted)
    assert bool(((found - wanted).abs() <= 2**-10 * (reach + wanted.abs().max())).all())
    assert float((found - wanted).norm() / wanted.norm()) < 3e-4


@pytest.mark.parametrize("form", [form for form in LAYOUTS if form not in (*EXACT, *NEAR)])
def test_blocks_of_other_types_are_right_to_8_bits(form: Form) -> None:
    blocks = draw_blocks(form, 16, 512)
    found, wanted = linear.pack_blocks(torch.from_numpy(blocks), form).to_dense(), unpack_blocks(blocks, form)
    assert bool(((found - wanted).abs() <= find_largest(wanted) / 127 * 0.51).all())


def find_largest(numbers: torch.Tensor) -> torch.Tensor:
    """Return for each number the largest magnitude in its group."""
    return numbers.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1)


def test_layouts_are_those_of_the_gguf_package() -> None:
    sizes = {form: gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]] for form in LAYOUTS}
    assert {form: (layout.weights, layout.size) for form, layout in LAYOUTS.items()} == sizes


def test_scales_too_large_for_float16_are_refused() -> None:
    blocks = draw_blocks("MXFP4", 1, 32)
    blocks[0, 0] = 200
    with pytest.raises(Unsupported, match="MXFP4 are too large for float16"):
        linear.pack_blocks(torch.from_numpy(blocks), "MXFP4")


def test_four_bits_are_fitted_to_their_weights() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    spread = ((groups - low) / (high - low) * 15).round() / 15 * (high - low) + low  # over the whole range
    found = linear.pack(weight, "int4").to_dense()
    assert float((found - weight).square().sum()) < 0.89 * float((spread - groups).square().sum())
    again = linear.pack(found, "int4").to_dense()
    assert float((again - found).norm() / found.norm()) < 1e-3, "what is in 4 bits already stays as it is"


class MixedLlama(TinyLlama):
    """A Llama of 256 channels, its matrices random blocks."""

    forms: Mapping[str, Form] = MIXED

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, tensor: npt.NDArray[np.generic]) -> None:
        form = self.forms.get(name.removesuffix(".weight").rpartition(".")[2])
        if form is None:
            writer.add_tensor(name, tensor)
        else:
            height, width = tensor.shape
            blocks = draw_blocks(form, height, width, len(writer.tensors[-1]))
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[form])


def write_llama(path: Path) -> Path:
    """Write a GGUF file of mixed types."""
    values = default_values() | {
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH * 2,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.block_count": LAYERS,
    }
    vocab = len(values["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    head = WIDTH // HEADS
    shapes = {"token_embd": (vocab, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (WIDTH,),
            f"blk.{layer}.attn_q": (HEADS * head, WIDTH),
            f"blk.{layer}.attn_k": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_v": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_output": (WIDTH, HEADS * head),
            f"blk.{layer}.ffn_norm": (WIDTH,),
            f"blk.{layer}.ffn_gate": (WIDTH * 2, WIDTH),
            f"blk.{layer}.ffn_up": (WIDTH * 2, WIDTH),
            f"blk.{layer}.ffn_down": (WIDTH, WIDTH * 2),
        }
    tensors = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    return MixedLlama(values=values, tensors=dict(tensors)).write(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model twice: its blocks kept, and unpacked to float16."""
    root = tmp_path_factory.mktemp("gguf")
    path = write_llama(root / "mixed.gguf")
    (root / "floats").mkdir()
    convert_gguf(path, root / "floats", silent, "convert")
    kept = GgufSource(SourceContext(folder=root / "home")).fetch(str(path), silent).path
    return {"kept": kept, "floats": root / "floats"}


def score(
    folder: Path, tokens: tuple[int, ...] = tuple(range(3, 43)), weights: str = "auto", dtype: DType = "auto"
) -> tuple[torch.Tensor, StageInfo]:
    """Return the log-probabilities of tokens, and what the stage says of itself."""
    plan = StagePlan(model=folder, dtype=dtype, memory_fraction=0.01, options={"weights": weights})
    stage = TorchBackend().open_stage(plan)
    stage.edit([Open(SeqId(1), SequenceSpec(prompt_length=len(tokens), sampling=Sampling(temperature=0)))])
    outputs = tuple(Score(place, tokens[place + 1]) for place in range(len(tokens) - 1))
    answers = stage.step(StageBatch((Row(SeqId(1), 0, tokens, outputs),))).wait().answers
    stage.close()
    return torch.tensor([answer.logprob for answer in answers if isinstance(answer, Scored)]), stage.info


def test_file_of_mixed_types_is_served_as_it_is(folders: dict[str, Path]) -> None:
    wanted, whole = score(folders["floats"], weights="float32")
    unpacked, _ = score(folders["kept"], weights="float32")
    assert torch.equal(score(folders["kept"], dtype="float32")[0], unpacked)
    assert float((unpacked - wanted).abs().max()) < 0.1  # 6 bits with 16 scales were rounded again, to 8 with eight
    assert float((unpacked - wanted).abs().mean()) < 0.03
    found, info = score(folders["kept"])
    assert float(wanted.std()) > 0.2, "a model that says the same of all tokens shows nothing"
    assert float((found - wanted).abs().max()) < 0.3  # activations are rounded to 8 bits
    assert float((found - wanted).abs().mean()) < 0.08
    assert "Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0 weights" in info.device
    assert info.weight_bytes < whole.weight_bytes / 4


def test_stages_keep_the_blocks_of_their_layers(folders: dict[str, Path]) -> None:
    ranges = (LayerRange(0, 1), LayerRange(1, 2), LayerRange(0, 2))
    plans = [StagePlan(model=folders["kept"], layers=layers, memory_fraction=0.01) for layers in ranges]
    infos = [TorchBackend().open_stage(plan).info for plan in plans]
    sizes = [info.weight_bytes for info in infos]
    assert sizes[0] < sizes[2] > sizes[1]
    parts = [set(info.weights_parts.items()) for info in infos]
    assert parts[0] | parts[1] == parts[2]
    assert {"model.layers.0", "model.layers.1", "model.norm.weight"} < infos[2].weights_parts.keys()


def test_packed_and_unpacked_weights_of_one_file_are_different_ones(folders: dict[str, Path]) -> None:
    kept, floats = (
        TorchBackend().open_stage(StagePlan(model=folders[name], memory_fraction=0.01)).info
        for name in ("kept", "floats")
    )
    assert kept.weights_version != floats.weights_version
    assert kept.weights_parts["model.layers.0"] != floats.weights_parts["model.layers.0"]


@pytest.mark.parametrize(("known", "other"), [('"Q4_K"', '"Q6_K"'), ('"Q4_0"', '"Q6_K"'), ('"Q8_0"', '"Q9"')])
def test_blocks_that_are_not_what_is_said_are_refused(
    folders: dict[str, Path], tmp_path: Path, known: str, other: str
) -> None:
    for path in folders["kept"].iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(config.replace(known, other))
    with pytest.raises(ParallaxError, match=f"blocks of (the )?type {other[1:-1]}.* uint8"):
        TorchBackend().open_stage(StagePlan(model=tmp_path))
