"""Makes the report of this node: its device, its disk, and the layers of models on the disk."""

from __future__ import annotations

from dataclasses import replace

from parallax_cluster.node.profile.device import MachineProfile
from parallax_cluster.reports import describe_device
from parallax_cluster.wire.profile import MOST_MODELS, NodeReport, StoredLayers
from parallax_core.api import MOST_NAME, DType
from parallax_core.api.deployment import Catalog, PluginHost, find_stored_layers


def make_report(
    machine: MachineProfile,
    stored: tuple[StoredLayers, ...] = (),
    *,
    dtype: DType = "auto",
    memory: int | None = None,
    leases: bool = False,
) -> NodeReport:
    """Return the report of this node, to be sent to its cluster.

    Args:
        machine: as `measure_machine` found it.
        stored: the layers on its disk, see `list_stored`.
        dtype: with which it was measured.
        memory: bytes that it may use, if a user limits them.
        leases: whether its backend has leases.
    """
    device = machine.device
    if memory is not None:
        device = replace(device, memory=min(memory, device.total_memory or memory))
    return NodeReport(
        backend=machine.backend,
        device=describe_device(device),
        dtype=dtype,
        disk_bandwidth=machine.disk_bandwidth,
        disk_free=machine.disk_free,
        stored=stored,
        leases=leases,
    )


def list_stored(host: PluginHost, catalog: Catalog) -> tuple[StoredLayers, ...]:
    """Return the layers of each model on this machine, by the full name of the model: at most `MOST_MODELS` models."""
    found = []
    for source, model in (*catalog.stored(), *catalog.stored_partial()):
        name = f"{source}:{model.name}"
        layers = find_stored_layers(host, model.path) if len(name) <= MOST_NAME else None
        if layers is not None:
            found.append(StoredLayers(name, layers.start, layers.stop))
    return tuple(found[:MOST_MODELS])
