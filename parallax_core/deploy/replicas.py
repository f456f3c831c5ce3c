"""Makes replicas of the kinds that plugins offer, each in a worker process; see `ReplicaSpec`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from parallax_core.base.errors import BrokenPlugin, ParallaxError, UsageError
from parallax_core.cluster.placement.parallel import ParallelConfig, StagePlace
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.replica import ReplicaPlan, ReplicaSpec
from parallax_core.contracts.token_engine import TokenEngine
from parallax_core.deploy.executors import RemoteStages, name_worker
from parallax_core.engine.detokenizer import Decode
from parallax_core.node.membership.launch import WorkerProcess
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.text_engine import TextEngine
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.plugins.remedy import describe_error

STAGE = "stage"
"""The kind of replicas that is core's: pipelines of stages."""
OF_STAGES = ("batching", "scheduling", "preemption", "min_peer_timeout", "spares")
"""The settings that only concern core's own scheduling, or stages and the links between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaKind:
    """The kind of the replicas of a server, and the backend that it is for."""

    backend: str
    offer: Offer[ReplicaSpec]

    def make(self, plan: ReplicaPlan) -> TokenEngine:
        """Return the engine of a replica, not started.

        Raises:
            BrokenPlugin: if it cannot be imported, or raises anything but a ParallaxError.
        """
        make = self.offer.load(self.offer.spec.make)
        try:
            return make(plan)
        except ParallaxError:
            raise
        except Exception as error:
            name = f"the kind of replicas {self.offer.spec.name!r} of {self.offer.plugin.origin}"
            raise BrokenPlugin(f"{name} failed: {describe_error(error)}", "report it to its authors") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeReplicas:
    """Replicas of another kind than pipelines, each with a worker process that this process starts."""

    kind: ReplicaKind
    workers: RemoteStages
    """The workers and the plan, as for pipelines of one stage."""

    @property
    def plan(self) -> StagePlan:
        """The plan of every replica, apart from its device."""
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
        assert workers.supervisor is not None, "such replicas are not served on nodes that an operator starts"
        replica = ReplicaPlan(
            rank=rank,
            node=WorkerProcess(name_worker(rank, 0), workers.registry, workers.supervisor),
            model=workers.model,
            backend=workers.backends[0],
            weights=workers.weights,
            backlog=options.backlog,
            dtype=plan.dtype,
            device=place.device,
            memory_fraction=plan.memory_fraction,
            max_batch_tokens=plan.max_batch_tokens,
            max_running=plan.max_running,
            status_s=workers.heartbeat_s,
            load_timeout_s=options.load_timeout_s,
            step_timeout_s=options.step_timeout_s,
            progress=plan.progress,
            on_lost=on_lost,
        )
        return TextEngine(self.kind.make(replica), decode, options.limits)


def find_kind(settings: ServeSettings, parallel: ParallelConfig, plugins: PluginHost) -> ReplicaKind | None:
    """Return the kind of replicas that the backend which the user named prefers; None: pipelines of stages.

    Raises:
        UnknownName: if no plugin offers the kind; the hint says which distribution to install.
        UsageError: if other settings contradict it; it names them.
    """
    spec = _find_spec(settings.backend, plugins)
    if spec is None:
        return None
    is_split = parallel.num_stages > 1 or bool(parallel.layers)
    if is_split and STAGE not in spec.opens:
        message = f"the backend {spec.name!r} serves whole models only, and the model is to be split into stages"
        raise UsageError(message, "leave --stages and --layers out, or name another --backend")
    if is_split or spec.opens[0] == STAGE:
        return None
    _check_settings(settings, spec.name)
    return ReplicaKind(backend=spec.name, offer=plugins.replicas().get(spec.opens[0]))


def _check_settings(settings: ServeSettings, backend: str) -> None:
    if settings.listen is not None:
        message = f"the engine of {backend!r} runs on this machine, and --listen waits for nodes of others"
        raise UsageError(message, "leave --listen out, or name another --backend")
    defaults = {field.name: field.default for field in fields(ServeSettings)}
    for name in OF_STAGES:
        if getattr(settings, name) != defaults[name]:
            message = f"[serve] {name} is for pipelines of stages, and {backend!r} schedules by itself"
            raise UsageError(message, "leave it out")


def _find_spec(name: str | None, plugins: PluginHost) -> BackendSpec | None:
    """Return the spec of a backend that is installed here; None if it is not, or none is named."""
    names = {offer.spec.name for offer in plugins.backends().offers}
    return plugins.backends().get(name).spec if name in names else None
