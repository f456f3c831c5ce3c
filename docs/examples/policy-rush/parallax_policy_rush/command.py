"""Show the steps that a rush of requests would begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.api import QueueView
from parallax_core.api.cli import Config, UsageError, from_section, new_app, print_table
from parallax_policy_rush.policy import Rush

app = new_app()

LEAST_S = 1e-9
"""A wait that is only the rounding of times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RushSettings:
    """The section ``[rush]``: options of the command, keys of the file, and variables ``PARALLAX_RUSH__KEY``."""

    gap: Annotated[
        float, Meta(description="Milliseconds between two requests of a rush.", ge=0, extra={"metavar": "MS"})
    ] = 2.0
    most: Annotated[
        float, Meta(description="Milliseconds that a request waits at most.", ge=0, extra={"metavar": "MS"})
    ] = 30.0
    arrival: Annotated[
        tuple[float, ...],
        Meta(description="When a request arrives, in milliseconds; may be repeated.", extra={"metavar": "MS"}),
    ] = (0.0,)


@app.command()
@from_section("rush", RushSettings)
def rush(settings: RushSettings, config: Config) -> None:
    """Show when steps begin, and of how many requests, if some arrive at the given times."""
    del config
    if settings.gap > settings.most:
        raise UsageError(f"--gap {settings.gap:g} is more than --most {settings.most:g}", "give a smaller gap")
    policy = Rush(gap_s=settings.gap / 1000, most_s=settings.most / 1000)
    rows = [(f"{begun * 1000:.3g} ms", size) for begun, size in list_steps(sorted(settings.arrival), policy)]
    print_table(("BEGINS AT", "REQUESTS"), rows)


def list_steps(arrivals_ms: list[float], policy: Rush) -> list[tuple[float, int]]:
    """Return when each step begins, in seconds, and of how many requests; each begins when the one before has ended."""
    arrivals, steps = [each / 1000 for each in arrivals_ms], []
    while arrivals:
        now, ready = arrivals[0], 1
        while (
            wait := policy.wait_s(QueueView(num_ready=ready, oldest_wait_s=now - arrivals[0], num_in_flight=0))
        ) > LEAST_S:
            now = min([now + wait, *(each for each in arrivals if each > now)])
            ready = sum(each <= now for each in arrivals)
        steps.append((now, ready))
        arrivals = arrivals[ready:]
    return steps
