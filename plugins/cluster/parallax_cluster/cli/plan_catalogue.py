"""Prints what a nodes file may name: devices and links with known figures, and an example."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from parallax_cluster.placement.device_table import KINDS as DEVICE_KINDS
from parallax_cluster.placement.link_kinds import KINDS as LINK_KINDS
from parallax_core.api.cli import align

EXAMPLE = """\
[network]                    # the connection of nodes that no link names, and where the head is
kind = "1gbe"                # `parallax cluster plan --devices` lists the kinds; or rtt_ms and mbit_s
head = "home"                # a node or a site; without it, beside the first stage of each pipeline

[[nodes]]
name = "desk"
device = "RTX 4090"          # typical figures; `parallax cluster profile` on the machine measures its own
memory_gb = 22               # really free; by default 92 % of what it is sold with
site = "home"

[[nodes]]
name = "studio"
device = "M3 Ultra 512"      # with 512 GB
site = "home"

[[nodes]]
name = "rig"
device = "RTX 3090"
gpus = 2                     # rig-gpu0 and rig-gpu1, over PCIe
site = "office"

[[nodes]]
name = "attic"
count = 2                    # attic-1 and attic-2
memory_gb = 14               # a device that is not listed needs these three
tflops = 4
bandwidth_gb_s = 110
site = "home"

[[links]]
ends = ["home", "office"]    # nodes or sites
kind = "internet"
rtt_ms = 18                  # replaces the typical figure of the kind

[[links]]
ends = ["studio", "desk"]
kind = "10gbe"
"""
"""A nodes file."""


def print_example(wanted: bool) -> None:
    """Print the example and end the command, if it is wanted."""
    if wanted:
        print(EXAMPLE, end="")
        raise typer.Exit


def print_catalogue(wanted: bool) -> None:
    """Print the devices and links with known figures and end the command, if they are wanted."""
    if wanted:
        print("\n".join(_list_catalogue()))
        raise typer.Exit


def _list_catalogue() -> Iterator[str]:
    devices = [
        (name, " or ".join(f"{size:g}" for size in sizes), f"{tflops:g}", f"{bandwidth:g}", kind.name)
        for kind in DEVICE_KINDS
        for name, (sizes, tflops, bandwidth) in kind.list_devices()
    ]
    yield from align([("DEVICE", "MEMORY GB", "TFLOPS", "GB/S", "KIND"), *devices])
    yield ""
    links = [(name, f"{rtt_ms:g}", f"{mbit_s:g}") for name, (rtt_ms, mbit_s) in LINK_KINDS.items()]
    yield from align([("LINK", "RTT MS", "MBIT/S"), *links])
    yield ""
    yield "Names are read as people write them (RTX 4090, M3 Ultra 512, A100 80GB). Figures are those of data sheets;"
    yield "layers reach a share of them that is typical of the kind."
