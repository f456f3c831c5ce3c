"""The section ``[web]`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class WebSettings:
    """Whether the page is served, and what the server keeps for it."""

    enabled: Annotated[bool, Meta(description="Whether the server has the page.")] = True
    chats: Annotated[
        str,
        Meta(
            description="The file in which the server keeps conversations for those who want it, each for its API key,"
            " or its address without keys. Empty: browsers alone keep them."
        ),
    ] = ""
    chats_size: Annotated[
        float, Meta(description="The most megabytes of conversations of one key or address.", gt=0, le=1e6)
    ] = 64.0
