"""Offers vLLM's routes of the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl

HERE = "parallax_api_tokenize"


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the dialect."""
    return [
        DialectSpec(
            name="tokenize",
            summary="vLLM's routes of the tokenizer",
            open=Ref(f"{HERE}.route:open_dialect"),
            bodies={
                "tokenize": BodySpec(
                    path="/tokenize",
                    schema=Ref(f"{HERE}.body_models:TokenizeRequest"),
                    read=Ref(f"{HERE}.request:tokenize"),
                ),
                "detokenize": BodySpec(
                    path="/detokenize",
                    schema=Ref(f"{HERE}.body_models:DetokenizeRequest"),
                    read=Ref(f"{HERE}.request:detokenize"),
                ),
            },
        )
    ]
