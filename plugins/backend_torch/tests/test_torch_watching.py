"""What matrices of a stage are given, and stages whose outputs are changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from parallax_backend_torch.backend import TorchBackend
from parallax_backend_torch.kernels import library
from parallax_backend_torch.watching import OPTIONS, ModulePart, watching
from parallax_core.api import (
    Drop,
    Open,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
)
from parallax_models.blocks.qwen2 import Qwen2
from tests.support.checkpoints import LAYERS, save_family

SEQ, TOKENS = SeqId(1), (5, 9, 60, 2)


class Watcher:
    """Notes what it sees, and adds a number to some outputs."""

    def __init__(self, added: float) -> None:
        self.added, self.seen = added, dict[str, torch.Size]()

    def see(self, parts: Sequence[ModulePart], x: torch.Tensor, out: torch.Tensor) -> None:
        assert out.shape == (len(x), sum(part.size for part in parts))
        self.seen |= {part.name: x.shape for part in parts}
        if parts[0].name.endswith("down_proj"):
            out.add_(self.added * torch.arange(out.shape[1]))


def step(stage: Stage) -> float:
    """Return the log-probability of a token after a prompt."""
    stage.edit([Open(SEQ, SequenceSpec(prompt_length=len(TOKENS), sampling=Sampling(temperature=0)))])
    [answer] = stage.step(StageBatch((Row(SEQ, 0, TOKENS, (Score(len(TOKENS) - 1, 7, 1),)),))).wait().answers
    stage.edit([Drop(SEQ)])
    assert isinstance(answer, Scored)
    return answer.logprob


def test_every_matrix_of_every_layer_is_seen(tmp_path: Path) -> None:
    save_family("qwen2", tmp_path)
    plan = StagePlan(model=tmp_path, dtype="float32", memory_fraction=0.001, blocks=Qwen2, options={**OPTIONS})
    stage = TorchBackend().open_stage(plan)
    found = step(stage)
    with watching(stage, watcher := Watcher(0)):
        assert step(stage) == found
    names = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert watcher.seen.keys() == {f"layers.{layer}.{name}" for layer in range(LAYERS) for name in names}
    assert all(shape[0] == len(TOKENS) for shape in watcher.seen.values())
    with watching(stage, Watcher(0.5)):
        assert step(stage) != found
    assert step(stage) == found
    stage.close()
    library.choose_kernels("auto")  # for other tests in this process
