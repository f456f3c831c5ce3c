"""Show the cluster of a running server, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_core.api import ParallaxError
from parallax_core.api.cli import new_app

if TYPE_CHECKING:
    from rich.console import Group

TIMEOUT_S = 10.0
"""Seconds a server may take to answer."""
MOST_REQUESTS = 12

app = new_app()


@app.command()
def top(
    *,
    url: UrlOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.2, max=3600, metavar="S")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the present state and end.")] = False,
) -> None:
    """Show the cluster of a running server, live.

    Ctrl-C ends it. A key of the role admin is taken from PARALLAX_API_KEY.
    """
    from rich.console import Console

    console = Console(highlight=False)
    watch = Watch(Client(find_url(url), TIMEOUT_S))
    first = watch.look()
    if once or not sys.stdout.isatty():
        console.print(first)
        return
    follow(watch.look, first, interval, console)


@dataclass(slots=True)
class Watch:
    """Looks at a server again and again, and counts the tokens computed meanwhile."""

    client: Client
    clock: Callable[[], float] = time.monotonic
    _counted: tuple[float, int] | None = field(default=None)
    """When tokens were counted last, and how many."""

    def look(self) -> Group:
        """Return the present state.

        Raises:
            ParallaxError: if the server does not answer, or refuses.
        """
        from parallax_operate.top_view import render

        cluster = self.client.read("/cluster", "cluster")
        return render(cluster, self._list_requests(), self._measure(cluster))

    def _measure(self, cluster: dict[str, Any]) -> float | None:
        """Return the tokens computed per second since the last look, prompts included; None: there was none."""
        tokens: int = sum(each["stages"][0]["tokens"] for each in cluster["replicas"] if each["stages"])
        now, before = self.clock(), self._counted
        self._counted = now, tokens
        if before is None or now <= before[0]:
            return None
        return max(0, tokens - before[1]) / (now - before[0])

    def _list_requests(self) -> list[dict[str, Any]]:
        """Return the latest requests; none of a server without `parallax-observe`."""
        try:
            found: list[dict[str, Any]] = self.client.read(f"/requests?limit={MOST_REQUESTS}", "list")["data"]
        except ParallaxError:
            return []
        return found


def follow(look: Callable[[], Group], first: Group, interval_s: float, console: Any) -> None:  # noqa: ANN401 -- of rich
    """Show the state in place until Ctrl-C; a server that is lost may come back."""
    from rich.console import Group as Lines
    from rich.live import Live
    from rich.text import Text

    shown = first
    with Live(first, console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                time.sleep(interval_s)
                shown = look()
                live.update(shown, refresh=True)
            except ParallaxError as error:
                live.update(Lines(Text(f"error: {error.message}", "red"), shown), refresh=True)
            except KeyboardInterrupt:
                return
