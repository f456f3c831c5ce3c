"""Offers OpenAI's embeddings API."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the dialect."""
    return [
        DialectSpec(
            name="embeddings",
            summary="OpenAI's embeddings",
            open=Ref("parallax_api_embeddings.route:open_dialect"),
            bodies={
                "embedding": BodySpec(
                    path="/v1/embeddings",
                    schema=Ref("parallax_api_embeddings.body_models:EmbeddingRequest"),
                    read=Ref("parallax_api_embeddings.request:read_embedding"),
                ),
            },
        )
    ]
