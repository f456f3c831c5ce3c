"""What kinds of deployments use: settings, models and backends, policies, and the status they give."""

from parallax_core.config.config import Config
from parallax_core.config.marks import MODEL, STAGES
from parallax_core.config.network_options import (
    STUN_PORT,
    LogFormat,
    Offline,
    PeerTimeout,
    RelayLimitSettings,
    RelaySettings,
    StunPort,
)
from parallax_core.config.serve import ServeSettings
from parallax_core.config.server import ServerSettings
from parallax_core.config.worker import NodeSettings, WorkerSettings, name_node
from parallax_core.contracts.status import (
    Described,
    Drainable,
    NodeProgress,
    NodeStatus,
    PlannedMove,
    PlannedReplica,
    PlanStatus,
    ReplicaLimits,
    ReplicaStatus,
    RunningRequest,
    StageStatus,
)
from parallax_core.deploy.node_transport import choose_listen, make_transport
from parallax_core.models.adapters import ModelFamily, count_active, count_weights, find_family, find_spec
from parallax_core.models.backends import choose_backend, find_backends, probe
from parallax_core.models.catalog import Catalog
from parallax_core.models.stage_tensors import find_part, find_stored_layers
from parallax_core.models.stages import check_model, measure_loaded, open_stage
from parallax_core.node.policy.guard import PolicyGuard
from parallax_core.node.policy.parse import read_policy
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer

__all__ = [
    "MODEL",
    "STAGES",
    "STUN_PORT",
    "Catalog",
    "Config",
    "Described",
    "Drainable",
    "LogFormat",
    "ModelFamily",
    "NodeProgress",
    "NodeSettings",
    "NodeStatus",
    "Offer",
    "Offline",
    "PeerTimeout",
    "PlanStatus",
    "PlannedMove",
    "PlannedReplica",
    "PluginHost",
    "PolicyGuard",
    "RelayLimitSettings",
    "RelaySettings",
    "ReplicaLimits",
    "ReplicaStatus",
    "RunningRequest",
    "ServeSettings",
    "ServerSettings",
    "StageStatus",
    "StunPort",
    "WorkerSettings",
    "check_model",
    "choose_backend",
    "choose_listen",
    "count_active",
    "count_weights",
    "find_backends",
    "find_family",
    "find_part",
    "find_spec",
    "find_stored_layers",
    "make_transport",
    "measure_loaded",
    "name_node",
    "open_stage",
    "probe",
    "read_policy",
]
