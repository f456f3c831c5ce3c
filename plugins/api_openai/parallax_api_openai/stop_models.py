"""The schemas of the request that ends another, and of its answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from parallax_core.api.bodies import ResponseModel, Strict, TextField


class StopRequest(Strict):
    """The body of ``POST /v1/stop_request``."""

    id: Annotated[TextField, Field(min_length=1, max_length=256)]
    """The ``id`` of the answer, or the ``X-Request-Id`` that the client sent with its request."""


class StopReply(ResponseModel):
    """The answer to ``POST /v1/stop_request``."""

    id: str
    stopped: Literal[True] = True
