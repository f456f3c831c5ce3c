from __future__ import annotations

from parallax_core.cluster.membership.standby_state import ClusterSettings, StandbyState
from parallax_core.config.run import RunSettings
from parallax_core.deploy.succession import adopt_settings


def test_standby_serves_what_its_coordinator_did_on_its_own_addresses() -> None:
    own = RunSettings(standby_of="plx1abc", listen="tcp://0.0.0.0:9100", port=8100, concurrency=2)
    goals = ClusterSettings(dtype="float32", concurrency=16, objective="latency")
    state = StandbyState(cluster=b"c", term=2, model="org/model", settings=goals)
    found = adopt_settings(own, state)
    assert (found.model, found.dtype, found.concurrency, found.objective) == ("org/model", "float32", 16, "latency")
    assert (found.listen, found.port, found.standby_of) == ("tcp://0.0.0.0:9100", 8100, "")
    for name in ClusterSettings.__struct_fields__:
        assert getattr(ClusterSettings(), name) == getattr(RunSettings(), name), "the usual values are the same"
