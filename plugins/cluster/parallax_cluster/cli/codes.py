"""The command ``parallax cluster codes``."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.join_codes import make_code
from parallax_cluster.membership.code_rules import CodeRecord, describe_left, describe_state
from parallax_cluster.membership.join_code import shorten_code
from parallax_cluster.node.membership.code_store import CodeStore, write_time
from parallax_core.api.cli import PluginHost, new_app, print_table

HOUR_S = 3600.0

app = new_app("Create and revoke join codes for machines that join the server of this machine.")


@app.command()
def new(
    hours: Annotated[
        float, typer.Option(help="Hours until it expires.", min=0.01, max=24 * 365, metavar="HOURS")
    ] = 1.0,
    uses: Annotated[int, typer.Option(help="The most machines it admits; 0: any number.", min=0, metavar="N")] = 1,
) -> None:
    """Print the command by which a machine joins the server on this one.

    Its last word is the code. Whoever has it may join until it expires: it is a secret. A machine on the same network
    can use the short form of the code instead, which is printed below it: it is easier to type, and has no address.
    """
    code, record = make_code(PluginHost.prepare(), hours * HOUR_S, uses)
    print(f"parallax join {code}", flush=True)
    print(f"On the same network also: parallax join {shorten_code(code)}", file=sys.stderr, flush=True)
    print(
        f"The code {record.name} admits {describe_left(record)} until {write_time(record.expires)}.",
        file=sys.stderr,
        flush=True,
    )


@app.command(name="list")
def show() -> None:
    """List the codes by name, without their secrets."""
    now = time.time()
    rows = [_describe(code, now) for code in CodeStore(cluster_file()).list_codes()]
    print_table(("CODE", "STATE", "USES", "EXPIRES"), rows, empty="there are no join codes: parallax cluster codes new")


@app.command()
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="CODE...", help="As `parallax cluster codes list` shows.")],
) -> None:
    """Revoke codes: they admit no more machines. Machines admitted before stay; see `parallax keys remove`."""
    store = CodeStore(cluster_file())
    for name in names:
        store.revoke(name)


def _describe(code: CodeRecord, now: float) -> tuple[str, ...]:
    uses = f"{code.num_uses}/{code.most_uses or 'any'}"
    return (code.name, describe_state(code, now), uses, write_time(code.expires))
