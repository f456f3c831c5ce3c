"""The FLOPs of a token that the plan counts are those of transformers, counted while it runs.

Products are counted by torch. The states of delta nets and of Mamba are updated by other operations, which are counted
here: one for each number of the state. A latent is multiplied whole by our stages, and in parts by transformers, so
what a token costs for each earlier one is not compared there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from parallax_cluster.placement.demand import measure_demand
from parallax_core.api import ModelShape
from parallax_models.plugin import parallax_register_models
from tests.support.checkpoints import BASE, SERVED, make_model

SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}
WIDE = {"head_dim": 32, "hidden_size": 256, "intermediate_size": 384, "mamba_n_heads": 64}
WIDE |= {"attention_chunk_size": 64, "mamba_d_head": 8, "mamba_d_ssm": 512, "sliding_window": 64}
"""Widths for which products are most of the work, as in published models."""
FIRST, LAST = 3, 33
"""The tokens whose FLOPs are counted, by the number of tokens they attend to."""
SAME = 0.02
STEPS = ("add", "div", "exp", "mul", "sub", "sum")
"""Operations of one FLOP for each number."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class StateCounter(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not read for its types
    """Counts the operations on tensors of given sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = frozenset(sizes)
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it."""
        found = func(*args, **(kwargs or {}))
        numbers = max((each.numel() for each in (*args, found) if isinstance(each, torch.Tensor)), default=0)
        if numbers in self.sizes and func.overloadpacket.__name__.rstrip("_") in STEPS:
            self.total += numbers
        return found


def make(kind: str) -> tuple[Any, ModelShape]:
    """Return a random model, and its shape."""
    settings = BASE | SERVED[kind]
    fixed = ("head_dim",) if settings.keys() & {"kv_lora_rank", "compress_rates"} else ()
    model = make_model(kind, settings | {name: WIDE[name] for name in WIDE if name in settings and name not in fixed})
    model.set_experts_implementation("eager")
    model.set_attn_implementation("eager")
    for part in model.modules():
        if type(part).__name__ == "Llama4TextExperts":
            part.forward = partial(run_chosen, part)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return model, SPECS[type(model).__name__].adapter.load().read_shape(config)


def run_chosen(part: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Run the experts of Llama 4 on the inputs that are theirs: transformers runs all, on zeros where they are not."""
    found = torch.zeros_like(inputs)
    rows = zip(*(each.view(part.num_experts, -1, inputs.shape[-1]) for each in (inputs, found)), strict=True)
    for number, (given, out) in enumerate(rows):
        chosen = given.any(dim=-1)
        gate, up = (given[chosen] @ part.gate_up_proj[number]).chunk(2, dim=-1)
        out[chosen] = (up * part.act_fn(gate)) @ part.down_proj[number]
    return found


def list_states(layer: Any) -> list[torch.Tensor]:
    """Return the matrices that a layer of a cache keeps of a sequence, of a delta net or of Mamba."""
    return [each for each in getattr(layer, "recurrent_states", {}).values() if each is not None]


def count_flops(model: Any) -> dict[int, int]:
    """Return the FLOPs of single tokens, by how many tokens they attend to."""
    tokens, cache, found = torch.arange(LAST)[None], None, {}
    sizes: list[int] = []
    with torch.inference_mode():
        for start, stop in ((0, FIRST - 1), (FIRST - 1, FIRST), (FIRST, LAST - 1), (LAST - 1, LAST)):
            with StateCounter(sizes) as state, FlopCounterMode(display=False) as products:
                cache = model(tokens[:, start:stop], past_key_values=cache, use_cache=True).past_key_values
            found[stop] = state.total + int(products.get_total_flops())
            sizes = [each.numel() for layer in cache.layers for each in list_states(layer)]
    return found


@pytest.mark.parametrize("kind", SERVED)
def test_flops_of_a_token_are_those_that_transformers_computes(kind: str) -> None:
    model, shape = make(kind)
    demand = measure_demand(shape)
    counted = count_flops(model)
    flops = sum(layer.flops + layer.draw_flops for layer in demand.layers)
    context = sum(layer.context_flops for layer in demand.layers)
    assert flops + FIRST * context == pytest.approx(counted[FIRST], rel=SAME)
    if not any(layer.kind == "latent" or layer.long_width for layer in shape.layers):
        assert (LAST - FIRST) * context == pytest.approx(counted[LAST] - counted[FIRST], rel=SAME)


def test_experts_of_llama4_give_what_transformers_gives_without_those_that_are_not_chosen() -> None:
    model, _ = make("llama4_text")
    experts = next(part for part in model.modules() if type(part).__name__ == "Llama4TextExperts")
    inputs = torch.randn(4, 3, experts.hidden_size) * torch.tensor([1.0, 0.0, 1.0])[:, None]
    with torch.inference_mode():
        wanted = type(experts).forward(experts, inputs.flatten(0, 1))
        assert torch.allclose(experts(inputs.flatten(0, 1)), wanted, atol=1e-6)
