"""The option of backends that several commands have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

BackendOptionTexts = Annotated[
    tuple[str, ...],
    Meta(
        description="An option of the backend, such as weights=int8; see `parallax config torch`; may be repeated.",
        extra={"metavar": "NAME=VALUE"},
    ),
]
"""Options as ``NAME=VALUE`` or ``BACKEND.NAME=VALUE``."""
