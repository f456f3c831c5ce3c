"""The command ``parallax cluster profile``."""

from __future__ import annotations

import json
import socket
from typing import Annotated, Any, get_args

import typer

from parallax_cluster.node.profile.device import measure_machine
from parallax_cluster.placement.nodes_file import describe_node
from parallax_core.api import DevicePlan, DType, NodeProfile, UsageError, format_bytes
from parallax_core.api.cli import PluginHost, new_app
from parallax_core.api.deployment import find_backends
from parallax_core.api.node import divert_output

app = new_app()


@app.command()
def profile(
    backend: Annotated[
        str | None, typer.Option(help="Measure with this backend; by default the best one.", metavar="NAME")
    ] = None,
    device: Annotated[str, typer.Option(help="The device, such as cuda:1.", metavar="DEVICE")] = "",
    dtype: Annotated[str, typer.Option(help="The dtype of the stages.", metavar="DTYPE")] = "auto",
    name: Annotated[str, typer.Option(help="The name of the node; by default the host name.", metavar="NAME")] = "",
    renew: Annotated[bool, typer.Option("--renew", help="Measure again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the device that stages here would use, and print it as an entry of a nodes file.

    The speed is measured once, in some seconds, and then cached; the free memory is read each time. For a plan:

    parallax cluster profile >> nodes.toml
    """
    host = PluginHost.prepare()
    plan = DevicePlan(device=device, dtype=_read_dtype(dtype))
    with divert_output():
        found = measure_machine(host, find_backends(host, backend)[0], plan, renew=renew)
    node = NodeProfile(name=name or socket.gethostname(), device=found.device, disk_bandwidth=found.disk_bandwidth)
    entry = describe_node(node)
    if as_json:
        print(json.dumps({"nodes": [entry]}, indent=2))
        return
    origin = f"measured with {found.backend}" if found.device.is_measured else "typical figures"
    print(f"[[nodes]]  # {origin}; {format_bytes(found.disk_free)} free on the disk")
    for key, value in entry.items():
        print(f"{key} = {_write(value)}")


def _read_dtype(text: str) -> DType:
    for dtype in get_args(DType):
        if text == dtype:
            found: DType = dtype
            return found
    raise UsageError(f"--dtype is {text!r}", f"choose {', '.join(get_args(DType))}")


def _write(value: Any) -> str:  # noqa: ANN401 -- a value of JSON
    """Return a value in TOML, which for text, numbers and lists of them is JSON."""
    return json.dumps(value, ensure_ascii=False)
