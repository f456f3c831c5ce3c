"""A pipeline of stages on torch and on MLX computes what transformers does, whichever of them is first.

Two kinds of borders: hidden states alone, before layers with states; and hidden states beside the token ids that later
stages look up, in a model that cannot be cut everywhere. ``benchmarks/families.py`` tries ten families.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import REGULAR
from tests.support.families import TOLERANCES, Family, Trial, run_greedy, run_ragged

mlx = pytest.importorskip("parallax_backend_mlx.backend")
KINDS = {"qwen3_5": (), "gemma4_text": (4, 5, 6)}
"""Model types, with the layers that no stage may begin with."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("first", ["torch", "mlx"])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_on_two_backends_compute_one_model(kind: str, first: str, tmp_path: Path) -> None:
    from tests.support.mixed_backend import MixedBackend
    from tests.support.mlx_backend import BroughtMlx
    from tests.support.torch_backend import TorchBackend

    pair = (TorchBackend(), BroughtMlx())
    family = Family(kind, tmp_path, MixedBackend(pair if first == "torch" else pair[::-1]), **REGULAR.get(kind, {}))
    assert tuple(cut for cut in range(1, family.num_layers) if cut not in family.legal) == KINDS[kind]
    with family.open_chain(family.legal) as chain:
        assert len({type(stage) for stage in chain.stages}) == 2
        trial = Trial(family, chain)
        assert run_greedy(trial, 64) == 64
        run_ragged(trial, 30)
        assert trial.find_error() < TOLERANCES.get(kind, 1e-4)
    for cut in KINDS[kind]:
        assert "reads the keys of layer" in family.find_refusal(cut)
