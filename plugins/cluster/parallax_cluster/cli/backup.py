"""The commands ``parallax cluster backup`` and ``parallax cluster restore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parallax_cluster.deploy.backup import back_up
from parallax_cluster.deploy.backup import restore as put_back
from parallax_core.api.cli import new_app

app = new_app()
restore_app = new_app()

File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.", show_default=False)]


@app.command()
def backup(file: File) -> None:
    """Copy the state of the server of this machine into a new file, also while it runs.

    That is what `parallax run` needs to go on as the same server on this machine or another: join codes, the last plan,
    its term, and the keys by which machines know it. The file is a secret; only you can read it.
    """
    number = back_up(file)
    print(f"{file} has {number} files; whoever reads it can be the server")


@restore_app.command()
def restore(file: File) -> None:
    """Put the state in a backup in the place of that of this machine, while no server runs here.

    Machines that had joined find the server at its address, with the same key. What was here before is kept in folders
    that the command names. Never run two servers of one backup at the same time.
    """
    for former in put_back(file):
        print(f"what was there before is in {former}")
    print("restored: start `parallax run` as before, at the same address")
