"""Makes replicas of engines that schedule themselves, each in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.parallel import ParallelConfig, StagePlace
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.deploy.executors import RemoteStages, name_worker
from parallax_core.engine.detokenizer import Decode
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.whole_model.engine import TextEngine
from parallax_core.node.whole_model.host import EngineAssignment, EngineHost
from parallax_core.node.whole_model.remote import RemoteEngine
from parallax_core.plugins.host import PluginHost

OF_STAGES = ("batching", "scheduling", "preemption", "min_peer_timeout", "spares")
"""The settings that only concern core's own scheduling, or stages and the links between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineWorkers:
    """Engines in worker processes that this process starts, one for each replica."""

    workers: RemoteStages
    """The workers and the plan, as for pipelines of one stage."""

    @property
    def plan(self) -> StagePlan:
        """The plan of every engine, apart from its device."""
        return self.workers.plan

    def make_engine(
        self,
        rank: int,
        place: StagePlace,
        options: PipelineOptions,
        decode: Decode,
        on_lost: Callable[[str], None] | None,
    ) -> TextEngine:
        """Return the engine of a replica, not started; ``on_lost`` is told the reason of each loss."""
        workers, plan = self.workers, self.plan
        assert workers.supervisor is not None, "engines are not served on nodes that an operator starts"
        assignment = EngineAssignment(
            node=name_worker(rank, 0),
            model=workers.model,
            backend=workers.backends[0],
            dtype=plan.dtype,
            device=place.device,
            memory_fraction=plan.memory_fraction,
            max_batch_tokens=plan.max_batch_tokens,
            max_running=plan.max_running,
            status_s=workers.heartbeat_s,
            load_timeout_s=options.load_timeout_s,
        )
        host = EngineHost(assignment, workers.registry, workers.supervisor, plan.progress, workers.weights)
        return TextEngine(RemoteEngine(host, options, on_lost), decode, options.limits)


def find_engine_backend(settings: ServeSettings, parallel: ParallelConfig, plugins: PluginHost) -> str:
    """Return the backend that the user named if its engine is to serve the whole model, else an empty text.

    Raises:
        UsageError: if other settings contradict that; it names them.
    """
    spec = _find_spec(settings.backend, plugins)
    if spec is None or "engine" not in spec.opens:
        return ""
    is_split = parallel.num_stages > 1 or bool(parallel.layers)
    if is_split and "stage" not in spec.opens:
        message = f"the backend {spec.name!r} serves whole models only, and the model is to be split into stages"
        raise UsageError(message, "leave --stages and --layers out, or name another --backend")
    if is_split or spec.opens[0] == "stage":
        return ""
    if settings.listen is not None:
        message = f"the engine of {spec.name!r} runs on this machine, and --listen waits for nodes of others"
        raise UsageError(message, "leave --listen out, or name another --backend")
    defaults = {field.name: field.default for field in fields(ServeSettings)}
    for name in OF_STAGES:
        if getattr(settings, name) != defaults[name]:
            message = f"[serve] {name} is for pipelines of stages, and {spec.name!r} schedules by itself"
            raise UsageError(message, "leave it out")
    return spec.name


def _find_spec(name: str | None, plugins: PluginHost) -> BackendSpec | None:
    """Return the spec of a backend that is installed here; None if it is not, or none is named."""
    names = {offer.spec.name for offer in plugins.backends().offers}
    return plugins.backends().get(name).spec if name in names else None
