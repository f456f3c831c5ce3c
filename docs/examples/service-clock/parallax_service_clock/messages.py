"""The message of the service."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from parallax_core.api import ServiceMessage, service_tag


class ClockReading(ServiceMessage, frozen=True, tag=service_tag("parallax-service-clock", 0)):
    """What the clock of a node shows; from the node to its head."""

    most_bytes: ClassVar[int] = 32
    most_per_s: ClassVar[float] = 1.0

    time_s: Annotated[float, Meta(ge=0, le=2**40)]
    """Seconds since 1970, UTC."""


ALL = (ClockReading,)
