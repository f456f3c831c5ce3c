"""Everything that a plugin may import from core. Everything else may change without notice."""

from parallax_core.backendkit.plan import check_device, choose_layers
from parallax_core.backendkit.row_stage import RowModel, RowStage
from parallax_core.base.errors import (
    BackendFailed,
    InvalidRequest,
    LossCause,
    OutOfPages,
    ParallaxError,
    PeerLost,
    StageLost,
    Unavailable,
    UnknownName,
    Unsupported,
)
from parallax_core.base.files import read_object
from parallax_core.base.ids import Epoch, LeaseId, RequestId, SeqId
from parallax_core.base.machine import Machine
from parallax_core.base.refs import Ref
from parallax_core.checkpoint.config_reader import ConfigReader, count_layers
from parallax_core.checkpoint.reader import find_missing, read_config, read_tensors
from parallax_core.checkpoint.weights_version import identify_weights
from parallax_core.config.home import cache_folder, keys_folder
from parallax_core.contracts.backend import Availability, Backend, BackendSpec, DType, Opens, StagePlan
from parallax_core.contracts.capability import Capability
from parallax_core.contracts.engine import (
    Delta,
    Engine,
    EngineStats,
    Finish,
    Health,
    Measured,
    Pause,
    PoolUse,
    Reason,
    Request,
    Stream,
    Timing,
    TokenLogprob,
)
from parallax_core.contracts.engine_spec import EngineBuild, EngineSpec, PipStep, RequestField, SeedSupport
from parallax_core.contracts.event import EngineReady, Event, RequestBegan, RequestEnded, StageLoss
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.grammar import Grammar, GrammarKind
from parallax_core.contracts.model import LayerShape, ModelAdapter, ModelShape, ModelSpec, Part
from parallax_core.contracts.parser import AnswerInfo, Content, Informed, Parser, ParserSpec, Piece, Reasoning, ToolCall
from parallax_core.contracts.policy import (
    ArrivalView,
    BatchingPolicy,
    Holder,
    Policy,
    PolicyKind,
    PolicySpec,
    PreemptionPolicy,
    QueueView,
    ReplicaView,
    RoutingPolicy,
)
from parallax_core.contracts.progress import Progress, Unit, silent
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.setting import Settings, SettingsSpec
from parallax_core.contracts.source import (
    ModelFolder,
    ModelSource,
    PartialSource,
    SourceContext,
    SourceSpec,
    StoredModel,
)
from parallax_core.contracts.stage import (
    Answer,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    Hidden,
    LayerRange,
    MaskSource,
    Open,
    Output,
    PoolInfo,
    PoolKind,
    Row,
    Score,
    Scored,
    SequenceSpec,
    Span,
    Stage,
    StageBatch,
    StageInfo,
    StageOutput,
    StageResult,
    State,
    Truncate,
)
from parallax_core.contracts.surface import HttpSurface
from parallax_core.contracts.tensor import ITEM_BYTES, Data, Tensor, TensorSpec
from parallax_core.contracts.token_engine import (
    EngineBackend,
    EngineInfo,
    EnginePlan,
    TokenEngine,
)
from parallax_core.contracts.transport import (
    Frame,
    FrameLimits,
    Guarded,
    Link,
    Monitored,
    Transport,
    TransportPlan,
    TransportSpec,
)
from parallax_core.hookspecs import PLUGIN_API, hookimpl
from parallax_core.pages.account import Account, Entry, Outcome
from parallax_core.pages.budget import PAGE_SIZE, Room, format_bytes, plan_pools
from parallax_core.pages.check import check_batch, check_edit, check_room
from parallax_core.pages.pool import Copy, Mark, PagePool
from parallax_core.sampling.answer import answer_draw, answer_output, answer_score, make_draft
from parallax_core.sampling.draw import GOLDEN32, MASK32, draw_key, gumbel, hash32, mix32
from parallax_core.sampling.masks import mask_logits
from parallax_core.sampling.ranking import Inquiry, Ranking, make_answers
from parallax_core.sampling.reference import Draft, adjust, best, draw, keep, logprobs
from parallax_core.wire.codec import WIRE_VERSION, decode, encode
from parallax_core.wire.errors import BadFrame, WireVersionMismatch
from parallax_core.wire.messages import Failure, Heartbeat, Hello, Mask, Message, Result, Step, Welcome

__all__ = [  # noqa: RUF022 -- in groups
    # Every plugin: hooks, settings, progress, errors, folders
    "PLUGIN_API",
    "Finding",
    "ParallaxError",
    "Progress",
    "Ref",
    "Settings",
    "SettingsSpec",
    "Unit",
    "UnknownName",
    "Unsupported",
    "cache_folder",
    "format_bytes",
    "hookimpl",
    "keys_folder",
    "read_object",
    "silent",
    # Backends: what a backend offers, and the stage contract
    "ITEM_BYTES",
    "Answer",
    "Availability",
    "Backend",
    "BackendFailed",
    "BackendSpec",
    "Capability",
    "DType",
    "Data",
    "Draw",
    "Drawn",
    "Drop",
    "Edit",
    "Fork",
    "Hidden",
    "LayerRange",
    "MaskSource",
    "Open",
    "OutOfPages",
    "Output",
    "PoolInfo",
    "PoolKind",
    "Row",
    "Sampling",
    "Score",
    "Scored",
    "SeqId",
    "SequenceSpec",
    "Span",
    "Stage",
    "StageBatch",
    "StageInfo",
    "StageLost",
    "StageOutput",
    "StagePlan",
    "StageResult",
    "State",
    "Tensor",
    "TensorSpec",
    "Truncate",
    # Backends: reading checkpoints, and help with a stage
    "ConfigReader",
    "Machine",
    "RowModel",
    "RowStage",
    "check_device",
    "choose_layers",
    "count_layers",
    "find_missing",
    "identify_weights",
    "read_config",
    "read_tensors",
    # Backends: pages of the KV cache
    "PAGE_SIZE",
    "Account",
    "Copy",
    "Entry",
    "Mark",
    "Outcome",
    "PagePool",
    "Room",
    "check_batch",
    "check_edit",
    "check_room",
    "plan_pools",
    # Backends: how tokens are drawn from logits
    "GOLDEN32",
    "MASK32",
    "Draft",
    "Inquiry",
    "Ranking",
    "adjust",
    "answer_draw",
    "answer_output",
    "answer_score",
    "best",
    "draw",
    "draw_key",
    "gumbel",
    "hash32",
    "keep",
    "logprobs",
    "make_answers",
    "make_draft",
    "mask_logits",
    "mix32",
    # Model families
    "LayerShape",
    "ModelAdapter",
    "ModelShape",
    "ModelSpec",
    "Part",
    # Model sources
    "ModelFolder",
    "ModelSource",
    "PartialSource",
    "SourceContext",
    "SourceSpec",
    "StoredModel",
    # Transports
    "Frame",
    "FrameLimits",
    "Guarded",
    "Link",
    "LossCause",
    "Monitored",
    "PeerLost",
    "Transport",
    "TransportPlan",
    "TransportSpec",
    # Policies
    "ArrivalView",
    "BatchingPolicy",
    "Holder",
    "Policy",
    "PolicyKind",
    "PolicySpec",
    "PreemptionPolicy",
    "QueueView",
    "ReplicaView",
    "RoutingPolicy",
    # Parsers of model output
    "AnswerInfo",
    "Content",
    "Informed",
    "Parser",
    "ParserSpec",
    "Piece",
    "Reasoning",
    "ToolCall",
    # Events, and routes of the HTTP server
    "EngineReady",
    "Event",
    "Finish",
    "HttpSurface",
    "Pause",
    "Reason",
    "RequestBegan",
    "RequestEnded",
    "RequestId",
    "StageLoss",
    "Timing",
    # Engines, and backends that open them
    "Delta",
    "Engine",
    "EngineBackend",
    "EngineBuild",
    "EngineInfo",
    "EnginePlan",
    "EngineSpec",
    "EngineStats",
    "Grammar",
    "GrammarKind",
    "Health",
    "InvalidRequest",
    "Measured",
    "Opens",
    "PipStep",
    "PoolUse",
    "Request",
    "RequestField",
    "SeedSupport",
    "Stream",
    "TokenEngine",
    "TokenLogprob",
    "Unavailable",
    # Messages between nodes
    "WIRE_VERSION",
    "BadFrame",
    "Epoch",
    "Failure",
    "Heartbeat",
    "Hello",
    "LeaseId",
    "Mask",
    "Message",
    "Result",
    "Step",
    "Welcome",
    "WireVersionMismatch",
    "decode",
    "encode",
]

PROVISIONAL = frozenset(
    {
        "MASK32",
        "PAGE_SIZE",
        "WIRE_VERSION",
        "BadFrame",
        "Epoch",
        "Failure",
        "Grammar",
        "GrammarKind",
        "Heartbeat",
        "Hello",
        "LeaseId",
        "Mask",
        "Measured",
        "Message",
        "Opens",
        "Result",
        "Step",
        "Stream",
        "TokenEngine",
        "Welcome",
        "WireVersionMismatch",
        "answer_draw",
        "answer_score",
        "check_batch",
        "check_edit",
        "check_room",
        "decode",
        "encode",
        "mix32",
        "read_object",
    }
)
"""Names that no plugin, example or template of the repository uses. They may change or go within one plugin API, with a
note in the changelog; ask for a name to be kept if you need it. See docs/explanation/change-policy.md."""
