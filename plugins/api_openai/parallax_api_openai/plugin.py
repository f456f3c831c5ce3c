"""Offers OpenAI's chat completions, completions and list of models."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl

HERE = "parallax_api_openai"


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the dialects."""
    return [
        DialectSpec(
            name="chat",
            summary="OpenAI's chat completions",
            open=Ref(f"{HERE}.chat:open_dialect"),
            bodies={
                "chat": BodySpec(
                    path="/v1/chat/completions",
                    schema=Ref("parallax_chat_requests.request_models:ChatRequest"),
                    read=Ref(f"{HERE}.request:read_chat_body"),
                )
            },
        ),
        DialectSpec(
            name="completions",
            summary="OpenAI's completions",
            open=Ref(f"{HERE}.completions:open_dialect"),
            bodies={
                "completion": BodySpec(
                    path="/v1/completions",
                    schema=Ref(f"{HERE}.completion_request:CompletionRequest"),
                    read=Ref(f"{HERE}.request:read_completion_body"),
                )
            },
        ),
        DialectSpec(name="models", summary="OpenAI's list of models", open=Ref(f"{HERE}.models:open_dialect")),
        DialectSpec(
            name="stop-request",
            summary="the end of a running request, by its id",
            open=Ref(f"{HERE}.stop_request:open_dialect"),
        ),
    ]
