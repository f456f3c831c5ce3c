"""The service of nodes keeps the promises of services, and the kind of replicas those of kinds."""

from __future__ import annotations

import msgspec

from parallax_core.api import EngineInfo, EngineStats, Grammar, Sampling
from parallax_core.testing.node_service import NodeServiceConformance
from parallax_core.testing.replica_kind import ReplicaKindConformance
from parallax_core.testing.service_message import find_loose
from parallax_engines.messages import (
    Abort,
    AssignEngine,
    Deltas,
    EngineLoading,
    EngineOpened,
    EngineRefused,
    EngineStatus,
    StopEngine,
    Submit,
    TokenDelta,
    TokenFinish,
)
from parallax_engines.plugin import parallax_register_node_services, parallax_register_replicas

[SERVICE] = parallax_register_node_services()
[KIND] = parallax_register_replicas()
INFO = EngineInfo(
    num_layers=30,
    vocab_size=49152,
    context_length=8192,
    max_running=256,
    max_batch_tokens=2048,
    seed="engine",
    honours=frozenset({"top_p"}),
)


class TestEngineService(NodeServiceConformance):
    spec = SERVICE
    distribution = "parallax-engines"
    samples = (
        AssignEngine("vllm", "org/model", "bfloat16", "cuda:1", 0.5, 1.0, 4096, 512),
        EngineLoading("reading weights", 1, -1, "items"),
        EngineOpened(INFO, {"layers.0": "12ab"}),
        EngineRefused("no kernel", "build it"),
        Submit(7, (1, 2), 16, Sampling(), (0,), -1, 2, 5, -1, "poetry", "tenant", Grammar(kind="regex", source="a+")),
        Abort((7, 8)),
        Deltas((TokenDelta(7, (3,), 1, "stop", TokenFinish("stop", "", 4), 2, ((3, -0.5, ()),), ()),)),
        EngineStatus("failed", "its core has died", EngineStats(running=1)),
        StopEngine(),
    )

    def test_fields_are_bounded(self) -> None:
        """The types of contracts have no bounds: the size of the message bounds them, and its check what is shown."""
        for kind in self.kinds:
            found = msgspec.inspect.type_info(kind)
            assert isinstance(found, msgspec.inspect.StructType)
            own = [
                each for each in found.fields if not ({EngineInfo, EngineStats, Sampling, Grammar} & find_types(each))
            ]
            assert [name for each in own for name in find_loose(each)] == [], kind


def find_types(field: msgspec.inspect.Field) -> set[type]:
    """Return the classes of a field."""
    types = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
    return {each.cls for each in types if hasattr(each, "cls")}


class TestEngineKind(ReplicaKindConformance):
    spec = KIND
    service = SERVICE
