"""Write a package with a small plugin that works, and its tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from parallax_core.api.cli import PluginHost, UsageError, new_app
from parallax_scaffold.scaffold import KINDS, make_project, read_kind, read_like, write_project

app = new_app()

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help=f"What it offers: {', '.join(KINDS)}.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name for users, such as `cuda-graphs`.")]
Folder = Annotated[
    Path,
    typer.Option(
        "--folder", metavar="DIR", help="The folder in which to create the package; by default the current one."
    ),
]


@app.command()
def new(
    kind: KindArgument,
    name: NameArgument,
    folder: Folder = Path(),
    like: Annotated[str, typer.Option(metavar="FAMILY", help="For a model: the family that it begins as.")] = "",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The config.json of a model, for --like.")] = None,
) -> None:
    """Write a package with a small plugin that works, and its tests.

    The tests hold it to the contract, and pass as they are. Put your own in place of what it does, and see that they
    still do.
    """
    project = make_project(read_kind(kind), name)
    if like:
        if kind != "model":
            raise UsageError(f"--like is for a model, not for a {kind}", "leave it out")
        project = replace(project, like=read_like(PluginHost.prepare(), like, config))
    place = write_project(project, folder)
    print(f"wrote {place}\n")
    print("Next:\n")
    print(f"    cd {place}")
    print("    pip install -e '.[test]'")
    print("    pytest")
