"""Opens engines and stages of vLLM. Importing it imports vLLM, before the process joins a head."""

from __future__ import annotations

import contextlib
import importlib

from parallax_backend_vllm.compat import check_version
from parallax_backend_vllm.engine import VllmEngine
from parallax_backend_vllm.environ import load_openmp, set_environ
from parallax_backend_vllm.logs import configure_logs
from parallax_backend_vllm.probe import is_cpu_build
from parallax_backend_vllm.settings import VllmSettings
from parallax_backend_vllm.stage_backend import open_stage
from parallax_core.api import EnginePlan, ParallaxError, Stage, StagePlan


def import_vllm() -> None:
    """Import vLLM, as configured for this machine; its errors are raised by `VllmBackend.open_engine`."""
    set_environ()
    configure_logs()
    if is_cpu_build():
        load_openmp()
    with contextlib.suppress(Exception):
        check_version()
        importlib.import_module("vllm.v1.engine.async_llm")


class VllmBackend:
    """The backend ``vllm``."""

    def open_engine(self, plan: EnginePlan) -> VllmEngine:
        """Return an engine for the model of ``plan``; see `parallax_core.api.EngineBackend`."""
        check_version()
        return VllmEngine(plan, _read_settings(plan), is_cpu=is_cpu_build())

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load layers of the model of ``plan``; see `parallax_core.api.Backend`."""
        check_version()
        return open_stage(plan, _read_settings(plan))


def _read_settings(plan: EnginePlan | StagePlan) -> VllmSettings:
    try:
        return VllmSettings(**plan.options)
    except ValueError as error:
        raise ParallaxError(str(error), "`parallax config vllm` explains the options") from error


import_vllm()
