"""Opens engines of SGLang that serve whole models, and stages that SGLang computes."""

from __future__ import annotations

from functools import partial

from parallax_adapters.engines import EngineAdapters
from parallax_backend_sglang.arguments import Device, choose_device, make_arguments, read_architecture
from parallax_backend_sglang.engine import EngineLoad, SglangEngine
from parallax_backend_sglang.families import check_cpu
from parallax_backend_sglang.frames import LoadEngine
from parallax_backend_sglang.probe import has_cuda
from parallax_backend_sglang.process import ChildProcess, StageProcess
from parallax_backend_sglang.remote_stage import RemoteStage
from parallax_backend_sglang.settings import SglangSettings
from parallax_backend_sglang.stage_plan import plan_stage
from parallax_backend_sglang.versions import REMEDY, explain_unsupported, find_installed
from parallax_core.api import EnginePlan, Machine, StagePlan, Unsupported, read_config


class SglangBackend:
    """The backend ``sglang``."""

    def open_engine(self, plan: EnginePlan) -> SglangEngine:
        """Return an engine for the model; see `parallax_core.api.EngineBackend.open_engine`."""
        if reason := explain_unsupported(find_installed()):
            raise Unsupported(reason, REMEDY)
        settings = SglangSettings(**plan.options)
        device = choose_device(plan.device, settings, has_cuda=has_cuda())
        if device.is_cpu:
            check_cpu(plan.model)
        message = LoadEngine(read_architecture(read_config(plan.model)), make_arguments(plan, settings, device))
        adapters = EngineAdapters(plan.model, settings.max_lora_rank) if settings.max_loras else None
        load = EngineLoad(message, adapters, describe_device(device), plan.progress)
        return SglangEngine(load, partial(ChildProcess, on_cpu=device.is_cpu, threads=choose_threads(settings)))

    def open_stage(self, plan: StagePlan) -> RemoteStage:
        """Load layers and return a stage that is ready; see `parallax_core.api.Backend.open_stage`."""
        if reason := explain_unsupported(find_installed()):
            raise Unsupported(reason, REMEDY)
        settings = SglangSettings(**plan.options)
        device = choose_device(plan.device, settings, has_cuda=has_cuda())
        if device.is_cpu:
            check_cpu(plan.model)
        load = plan_stage(plan, settings, device)
        threads = choose_threads(settings)
        return RemoteStage(partial(StageProcess, on_cpu=device.is_cpu, threads=threads), load, plan.progress)


def describe_device(device: Device) -> str:
    """Return a description of a device for people."""
    return f"cpu (SGLang {find_installed()})" if device.is_cpu else f"cuda:{device.index} (SGLang {find_installed()})"


def choose_threads(settings: SglangSettings) -> int:
    """Return the number of threads that compute on a CPU."""
    return settings.threads or Machine().count_cores()
