"""Options of commands that plan: how large a model is, and as whom its weights are loaded."""

from __future__ import annotations

from typing import Annotated

import typer

WeightBitsOption = Annotated[
    float | None,
    typer.Option(help="Bits per weight as loaded; by default as stored.", min=0.5, max=64, metavar="BITS"),
]
ParamsOption = Annotated[
    str | None, typer.Option(help="Plan by size, whatever the family: its parameters, as 24B.", metavar="N")
]
LayersOption = Annotated[int | None, typer.Option(help="For --params: its layers.", min=1, max=10_000, metavar="N")]
ActiveOption = Annotated[str | None, typer.Option(help="For --params: the parameters that a token meets.", metavar="N")]
BackendOption = Annotated[str | None, typer.Option(help="Plan weights as this backend loads them.", metavar="NAME")]
DeviceOption = Annotated[
    str, typer.Option(help="The device for --backend, such as cuda; by default its best here.", metavar="NAME")
]
