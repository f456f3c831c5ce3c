"""Layers whose norms, gates and sums are inside their products give what their parts give one after the other."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from parallax_backend_torch.arithmetic import Norm, rotate
from parallax_backend_torch.device_kernels import DEVICE_KERNELS
from parallax_core.api import DType, Hidden, Open, Row, Sampling, SeqId, SequenceSpec, StageBatch, StagePlan
from parallax_sampling_torch.tensors import read_tensor
from tests.support.checkpoints import save_family
from tests.support.torch_backend import TorchBackend

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICE, CLOSE = "cuda", 2e-2
KERNELS = DEVICE_KERNELS.find(torch.device(DEVICE, 0)) if torch.cuda.is_available() else None


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Return random numbers on the device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def check(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that the distance of two results is small beside their size."""
    wide = found.float()
    assert wide.isfinite().all()
    assert float((wide - expected).norm()) < CLOSE * float(expected.norm())


def normalize(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Return a norm in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * (norm.weight + norm.offset)


SHAPES = [(192, 64), (960, 576), (4096, 4096), (512, 14336)]


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("rows", [1, 5, 8, 17, 32])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_product_behind_a_norm_is_that_of_pytorch(outputs: int, inputs: int, rows: int) -> None:
    assert KERNELS
    weight, bias, hidden = (
        draw(outputs, inputs, seed=1) / inputs**0.5,
        draw(outputs, seed=2),
        draw(rows, inputs, seed=3),
    )
    norm = Norm(draw(inputs, dtype=torch.float32, seed=4), 1e-5, 1.0)
    product, stream = KERNELS.Product(weight, bias), KERNELS.begin_stream(hidden, norm)
    expected = normalize(hidden, norm) @ weight.float().t() + bias.float()
    first = product.apply(stream)
    check(first, expected)
    assert torch.equal(first, product.apply(stream)), "the parts are always added in the same order"
    gates, values = expected.chunk(2, dim=1)
    check(product.apply_gated(stream, "silu"), functional.silu(gates) * values)
    check(product.apply_gated(stream, "gelu_tanh"), functional.gelu(gates, approximate="tanh") * values)
    assert not product.counters.any()


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("rows", [1, 7, 16, 32])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_product_before_a_norm_adds_up_and_is_ready_for_it(outputs: int, inputs: int, rows: int) -> None:
    assert KERNELS
    weight, residual, x = draw(outputs, inputs, seed=1) / inputs**0.5, draw(rows, outputs, seed=2), draw(rows, inputs)
    norm = Norm(draw(outputs, dtype=torch.float32, seed=4), 1e-5)
    product = KERNELS.Product(weight, None)
    expected = residual.float() + x.float() @ weight.float().t()
    stream = product.extend(x, residual, norm)
    check(stream.hidden, expected)
    check(stream.scaled, expected * norm.weight)
    check(stream.squares.sum(1), expected.square().sum(1))
    assert torch.equal(stream.hidden, product.apply(x, residual))


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("queries", "kv_heads", "width", "half"), [(32, 8, 128, 64), (9, 3, 64, 32), (6, 2, 80, 16)])
def test_heads_are_placed_as_by_single_steps(
    queries: int, kv_heads: int, width: int, half: int, *, has_norms: bool
) -> None:
    assert KERNELS
    mixed, angles = draw(5, queries + 2 * kv_heads, width), draw(5, half, dtype=torch.float32, seed=1)
    norms = [Norm(draw(width, dtype=torch.float32, seed=seed), 1e-5) for seed in (2, 3)] if has_norms else []
    expected = mixed.clone()
    for part, norm in zip((expected[:, :queries], expected[:, queries:-kv_heads]), norms, strict=False):
        part.copy_(normalize(part, norm))
    rotate(expected[:, :-kv_heads], (angles.cos(), angles.sin()))
    pool, slots = draw(2, 40, kv_heads, width, seed=5), torch.tensor([7, 3, 39, 0, 12], device=DEVICE)
    before = pool.clone()
    KERNELS.place_heads(mixed, (angles.cos(), angles.sin()), (pool[0], pool[1]), slots, norms)
    before[0, slots], before[1, slots] = expected[:, queries:-kv_heads], expected[:, -kv_heads:]
    check(mixed[:, :queries], expected[:, :queries].float())
    check(pool, before.float())
    assert torch.equal(pool[1], before[1]), "values are copied"


def run_model(folder: Path, kernels: str, dtype: DType = "bfloat16") -> torch.Tensor:
    """Return the last hidden states of three sequences, of prompts and of decodes behind them."""
    options = {"kernels": kernels}
    plan = StagePlan(model=folder, dtype=dtype, device=DEVICE, memory_fraction=0.1, options=options)
    stage, texts = TorchBackend().open_stage(plan), {SeqId(number): number * 13 + 7 for number in range(3)}
    stage.edit([Open(seq, SequenceSpec(prompt_length=count, sampling=Sampling())) for seq, count in texts.items()])
    found = []
    for step in range(5):
        rows = [
            Row(seq, count + step - 1, (step + 5,), (Hidden(0),))
            if step
            else Row(seq, 0, tuple(range(count)), (Hidden(count - 1),))
            for seq, count in texts.items()
        ]
        found += [read_tensor(each) for each in stage.step(StageBatch(tuple(rows), step=step)).wait().tensors]
    stage.close()
    return torch.stack(found)


@pytest.mark.needs_cuda
@needs_cuda
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_model_is_as_exact_as_without_kernels(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(DEVICE_KERNELS.choose, is_on=True))
    save_family(kind, tmp_path, hidden_size=128, head_dim=32, intermediate_size=192, vocab_size=128)
    exact, plain = run_model(tmp_path, "off", "float32"), run_model(tmp_path, "off")
    found = run_model(tmp_path, "auto")
    assert found.isfinite().all()
    assert float((found - exact).norm()) < 1.5 * float((plain - exact).norm())
