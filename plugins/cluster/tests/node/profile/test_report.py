from __future__ import annotations

from pathlib import Path

from parallax_cluster.node.profile.device import MachineProfile
from parallax_cluster.node.profile.report import list_stored, make_report
from parallax_cluster.reports import make_node
from parallax_cluster.wire.profile import StoredLayers
from parallax_core.contracts.placement import DeviceProfile
from parallax_core.contracts.source import StoredModel
from parallax_core.contracts.stage import LayerRange
from parallax_core.models.catalog import Catalog
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.model import write_checkpoint
from tests.conformance.test_model import CONFIG
from tests.unit.models.test_stage_tensors import ENDS, LAYERS, make_host

MACHINE = MachineProfile(
    backend="torch",
    device=DeviceProfile(memory=2**30, flops=1e12, bandwidth=1e10, name="Xeon", total_memory=2**31, is_measured=True),
    disk_bandwidth=5e8,
    disk_free=10**11,
)


class StoredCatalog(Catalog):
    """Has one complete model, and one whose files are gone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(PluginHost([]))
        self.folder = folder

    def stored(self) -> list[tuple[str, StoredModel]]:
        return [("hf", StoredModel(name="org/name", path=self.folder, size_bytes=1))]

    def stored_partial(self) -> list[tuple[str, StoredModel]]:
        return [("hf", StoredModel(name="org/gone", path=self.folder / "nowhere", size_bytes=1, total_bytes=2))]


def test_report_has_all_that_placement_needs(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", CONFIG, dict.fromkeys(sorted(LAYERS | ENDS), (4,)))
    stored = list_stored(make_host(), StoredCatalog(folder))
    assert stored == (StoredLayers("hf:org/name", 0, 3),)
    node = make_node("attic", make_report(MACHINE, stored), model="hf:org/name")
    assert (node.device, node.cached_layers) == (MACHINE.device, LayerRange(0, 3))
    assert (node.disk_bandwidth, node.disk_free) == (5e8, 10**11)


def test_memory_that_a_user_grants_is_reported_instead_of_what_is_free() -> None:
    assert make_report(MACHINE, memory=2**28).device.memory == 2**28
    assert make_report(MACHINE, memory=2**40).device.memory == 2**31, "there is no more"
