"""Everything a plugin may import from core. What is not here may change without notice."""

from parallax_core.base.errors import (
    BackendFailed,
    InvalidRequest,
    ParallaxError,
    Unavailable,
    UnknownName,
    Unsupported,
)
from parallax_core.base.files import read_object
from parallax_core.base.ids import RequestId, SeqId
from parallax_core.base.refs import Ref
from parallax_core.config.home import cache_folder
from parallax_core.contracts.backend import Availability, Backend, BackendSpec, DType, StagePlan
from parallax_core.contracts.engine import Delta, Engine, Finish, Health, Request, Stream
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.progress import Progress, Unit, silent
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.source import (
    ModelFolder,
    ModelSource,
    SourceContext,
    SourceSpec,
    StoredModel,
)
from parallax_core.contracts.stage import (
    Draw,
    Drop,
    Edit,
    Fork,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
    StageOutput,
    StageResult,
    Truncate,
)
from parallax_core.hookspecs import PLUGIN_API, hookimpl
from parallax_core.sampling.draw import GOLDEN32, MASK32, draw_key, gumbel, hash32, mix32
from parallax_core.sampling.reference import draw, keep

__all__ = [
    "GOLDEN32",
    "MASK32",
    "PLUGIN_API",
    "Availability",
    "Backend",
    "BackendFailed",
    "BackendSpec",
    "DType",
    "Delta",
    "Draw",
    "Drop",
    "Edit",
    "Engine",
    "Finding",
    "Finish",
    "Fork",
    "Health",
    "InvalidRequest",
    "LayerRange",
    "ModelFolder",
    "ModelSource",
    "Open",
    "ParallaxError",
    "PoolInfo",
    "Progress",
    "Ref",
    "Request",
    "RequestId",
    "Row",
    "Sampling",
    "SeqId",
    "SequenceSpec",
    "SourceContext",
    "SourceSpec",
    "Stage",
    "StageBatch",
    "StageInfo",
    "StageOutput",
    "StagePlan",
    "StageResult",
    "StoredModel",
    "Stream",
    "Truncate",
    "Unavailable",
    "Unit",
    "UnknownName",
    "Unsupported",
    "cache_folder",
    "draw",
    "draw_key",
    "gumbel",
    "hash32",
    "hookimpl",
    "keep",
    "mix32",
    "read_object",
    "silent",
]
