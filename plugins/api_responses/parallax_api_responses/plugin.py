"""Offers OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the dialect."""
    return [
        DialectSpec(
            name="responses",
            summary="OpenAI's Responses",
            open=Ref("parallax_api_responses.dialect:open_dialect"),
            bodies={
                "responses": BodySpec(
                    path="/v1/responses",
                    schema=Ref("parallax_api_responses.body_models:ResponsesRequest"),
                    read=Ref("parallax_api_responses.request:read_responses"),
                ),
                "compact": BodySpec(
                    path="/v1/responses/compact",
                    schema=Ref("parallax_api_responses.body_models:CompactRequest"),
                    read=Ref("parallax_api_responses.request:read_compact"),
                ),
            },
        )
    ]
