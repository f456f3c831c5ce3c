"""Describes models with those whose files compute them."""

from __future__ import annotations

import msgspec

from parallax_core.api.dialect import ModelEntry, ModelReply, ServedAdapter, ServedModels, describe_model


def find_weights(models: ServedModels) -> dict[str, list[str]]:
    """Return by model the models whose files compute it; empty where there is one form of it."""
    return {
        each.id: sorted({stage.weights for replica in each.replicas for stage in replica.stages if stage.weights})
        for each in models.describe().models
    }


def describe(
    known: ModelEntry, created: int, name: str, adapter: ServedAdapter | None = None, *, weights: list[str]
) -> ModelReply:
    """Return a model in OpenAI's form; ``weights`` are the models whose files compute it, if it has several forms."""
    return msgspec.structs.replace(describe_model(known, created, name, adapter), weights=weights or msgspec.UNSET)
