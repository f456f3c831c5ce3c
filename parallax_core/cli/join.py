"""The command ``parallax join``."""

from __future__ import annotations

import getpass
import os
import sys

from parallax_core.base.errors import UsageError
from parallax_core.cli.command import new_app
from parallax_core.cli.option import from_section
from parallax_core.cli.worker import run_worker
from parallax_core.config.config import Config
from parallax_core.config.join import JoinSettings
from parallax_core.deploy.joined import join_head
from parallax_core.models.backends import find_backends
from parallax_core.plugins.host import PluginHost
from parallax_core.server.forwarder import bind_api, find_api_url

STANDARD_INPUT = "-"

app = new_app()


@app.command()
@from_section("join", JoinSettings)
def join(settings: JoinSettings, config: Config) -> None:
    """Run stages of a model for the server that made a join code.

    The code names the server and proves that you may join; `parallax codes new` on its machine makes one. The server
    then knows this machine by its key: the next time, its address is enough. If the machine cannot join, the command
    says why within 5 seconds. Once joined, it is like `parallax worker`: if the server goes away, it tries to join
    again; to end it without loss, use SIGTERM, Ctrl-C or `parallax leave`.

    Clients of this machine can use the API of the server at 127.0.0.1, too: all they send and get is forwarded over the
    encrypted link. `parallax chat` and `parallax nodes` find the address by themselves.

    `parallax join -` keeps the code out of the history of the shell.
    """
    api = bind_api(settings.port) if settings.api else None  # before a code is used up
    where = _read_code() if settings.where == STANDARD_INPUT else settings.where
    plugins = PluginHost.discover(config)
    find_backends(plugins, settings.backend)  # a machine without one would use up the code
    joined, heads = join_head(plugins, where)
    node = f"{joined.machine}/{os.getpid()}"
    print(f"joining {joined.address} as {node}", file=sys.stderr, flush=True)
    if api is not None:
        print(f"API {find_api_url(api)}", file=sys.stderr, flush=True)
    worker = settings.as_worker(connect=joined.address, node=node, transport=joined.transport)
    run_worker(worker, node, config, heads, api)


def _read_code() -> str:
    code = (getpass.getpass("code: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not code:
        raise UsageError("there is no join code", "`parallax codes new` on the server's machine makes one")
    return code
