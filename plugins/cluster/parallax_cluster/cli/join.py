"""Run stages of a model for a server that gave you a join code."""

from __future__ import annotations

import getpass
import os
import sys
from functools import partial

from parallax_cluster.cli.join_view import JoinScreen
from parallax_cluster.config.join import JoinSettings
from parallax_cluster.deploy.joined import list_joined
from parallax_cluster.deploy.joining import Joiner, check_where
from parallax_cluster.labels import read_labels
from parallax_cluster.node.forwarding.forwarder import bind_api, find_api_url, forwarding
from parallax_core.api import UsageError
from parallax_core.api.cli import Config, Contacts, PluginHost, from_section, new_app, open_display, tell, tell_contacts
from parallax_core.api.deployment import find_backends
from parallax_core.cli.worker import run_worker
from parallax_core.deploy.head_access import HeadAccess

STANDARD_INPUT = "-"

app = new_app()


@app.command()
@from_section("join", JoinSettings)
def join(settings: JoinSettings, config: Config) -> None:
    """Run stages of a model for the server that made a join code.

    The code proves that you may join; `parallax cluster codes new` on the server's machine makes one. The server then
    knows this machine by its key: the next time, its address is enough, or `parallax join` alone, which finds the
    server on the local network. If the machine cannot join, the command says why within 5 seconds. Once joined, it is
    like `parallax worker`: if the server goes away, it tries to join again; to end it without loss, use SIGTERM, Ctrl-C
    or `parallax cluster leave`.

    Clients of this machine can use the API of the server at 127.0.0.1, too: all they send and get is forwarded over the
    encrypted link. `parallax chat` and `parallax nodes` find the address by themselves.

    `parallax join -` keeps the code out of the history of the shell.
    """
    where = _read_code() if _asks_for_code(settings.where) else settings.where
    check_where(where)
    read_labels(settings.label, "--label")  # a machine with a wrong one would use up the code
    tell_contacts(Contacts(links=True, seeks=settings.discovery), offline=settings.offline, verbose=settings.verbose)
    api = bind_api(settings.port) if settings.api else None  # before a code is used up
    plugins = PluginHost.discover(config)
    find_backends(plugins, settings.backend)  # a machine without one would use up the code
    joiner = Joiner(plugins, looks_around=settings.discovery)
    joined = joiner.join(where)
    node = f"{joined.machine}/{os.getpid()}"
    tell(f"joining {joined.address} as {node}", sys.stderr)
    url = find_api_url(api) if api is not None else ""
    if url:
        tell(f"API {url}", sys.stderr)
    worker = settings.as_worker(connect=joined.address, node=node, transport=joined.transport)
    seek = partial(joiner.list_addresses, joined) if settings.discovery else None
    beside = partial(forwarding, api) if api is not None else None
    access = HeadAccess(joiner.find_key(joined), url, beside, seek)
    with open_display("join", verbose=settings.verbose) as display:
        run_worker(config, worker, access, JoinScreen(display))


def _asks_for_code(where: str) -> bool:
    """Return whether a code is to be read: it is asked for, or needed since this machine has joined no server yet."""
    return where == STANDARD_INPUT or (not where and not list_joined())


def _read_code() -> str:
    code = (getpass.getpass("code: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not code:
        message = "there is no join code, and this machine has not joined a server before"
        raise UsageError(message, "`parallax cluster codes new` on the server's machine makes one")
    return code
