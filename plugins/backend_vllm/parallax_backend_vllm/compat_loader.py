"""Loads the weights of a stage into a model of vLLM. Importing this module imports vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from parallax_backend_vllm.stage_weights import get_weights

FORMAT = "parallax-stage"
"""The name of the loader in ``load_format``."""


class StageLoader(DefaultModelLoader):  # type: ignore[misc]
    """Reads safetensors with core's reader, which knows partially fetched files, checks them, and reports progress."""

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the stage that is being loaded, with their names."""
        del model_config, model
        yield from get_weights().load()


def register_loader() -> None:
    """Offer the loader to vLLM, as ``load_format``."""
    register_model_loader(FORMAT)(StageLoader)
