from __future__ import annotations

from typing import Any

import torch

from parallax_backend_vllm.residual import reads_residual

IntermediateTensors = dict  # as vLLM's models name it


class Adding:
    def forward(self, hidden_states: Any, residual: Any) -> Any:
        if residual is None:
            return IntermediateTensors({"hidden_states": hidden_states, "residual": residual})
        return hidden_states + residual


class Summed:
    """Its layers have added the residual, as those of EXAONE 4."""

    def forward(self, hidden_states: Any, residual: Any) -> Any:
        if hidden_states is None:
            return IntermediateTensors({"hidden_states": hidden_states, "residual": residual})
        return hidden_states * 2


def test_residual_counts_only_if_the_last_rank_reads_it() -> None:
    assert reads_residual(Adding)
    assert not reads_residual(Summed)
    assert reads_residual(torch.nn.Linear), "a module that hands nothing on"
    assert reads_residual(torch.Tensor), "no forward of its own"
