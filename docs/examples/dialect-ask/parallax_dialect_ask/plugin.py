"""Offers the dialect."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BodySpec, DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer questions in one line."""
    question = BodySpec(
        path="/v1/ask",
        schema=Ref("parallax_dialect_ask.bodies:Question"),
        read=Ref("parallax_dialect_ask.bodies:read_question"),
    )
    return [
        DialectSpec(
            name="ask",
            summary="questions in one line",
            open=Ref("parallax_dialect_ask.routes:open_dialect"),
            bodies={"question": question},
        )
    ]
