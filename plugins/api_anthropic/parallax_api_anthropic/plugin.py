"""Offers Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the dialect."""
    return [
        DialectSpec(
            name="messages",
            summary="Anthropic's Messages",
            open=Ref("parallax_api_anthropic.dialect:open_dialect"),
            bodies={
                "messages": BodySpec(
                    path="/v1/messages",
                    schema=Ref("parallax_api_anthropic.body_models:MessagesRequest"),
                    read=Ref("parallax_api_anthropic.request:read_messages"),
                ),
                "count_tokens": BodySpec(
                    path="/v1/messages/count_tokens",
                    schema=Ref("parallax_api_anthropic.body_models:CountTokensRequest"),
                    read=Ref("parallax_api_anthropic.request:count_tokens"),
                ),
            },
        )
    ]
