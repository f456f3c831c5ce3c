"""The command ``parallax cluster promote``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from parallax_cluster.deploy.standby import PROMOTION, find_standby
from parallax_cluster.deploy.succession import find_promotion_hint
from parallax_core.api import ParallaxError
from parallax_core.api.cli import new_app

app = new_app()


@app.command()
def promote(
    force: Annotated[bool, typer.Option("--force", help="Even if its server still answers.")] = False,
) -> None:
    """Let the standby on this machine replace the server that it follows.

    Use it when the server's machine is gone for good: its nodes turn to this machine, keep their loaded weights,
    and refuse the old server if it comes back. A standby is started by `parallax run --standby-of`.
    """
    standby = find_standby()
    if standby is None:
        raise ParallaxError("no standby runs on this machine", find_promotion_hint())
    if not standby.model:
        raise ParallaxError(f"the standby has heard nothing yet of {standby.address}", "its log says why")
    if not standby.is_accepted:
        message = f"the server at {standby.address} does not accept this machine as a standby any more"
        raise ParallaxError(message, "its key was removed, or has another role: `parallax keys list` on that machine")
    if standby.is_linked and not force:
        message = f"the server at {standby.address} still answers"
        raise ParallaxError(message, "end it first, or have it give way: `parallax cluster promote --force`")
    os.kill(standby.pid, PROMOTION)
    print(f"this machine serves {standby.model} from now on, in term {standby.term + 1}")
