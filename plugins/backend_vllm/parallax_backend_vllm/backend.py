"""Opens engines of vLLM. Importing this module imports vLLM, before its process has joined a head."""

from __future__ import annotations

import contextlib
import importlib

from parallax_backend_vllm.compat import check_version
from parallax_backend_vllm.engine import VllmEngine
from parallax_backend_vllm.environ import set_environ
from parallax_backend_vllm.logs import configure_logs
from parallax_backend_vllm.probe import is_cpu_build
from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import EnginePlan, ParallaxError


def import_vllm() -> None:
    """Import vLLM, as configured for this machine; its errors are raised by `VllmBackend.open_engine`."""
    set_environ()
    configure_logs()
    with contextlib.suppress(Exception):
        check_version()
        importlib.import_module("vllm.v1.engine.async_llm")


class VllmBackend:
    """The backend ``vllm``."""

    def open_engine(self, plan: EnginePlan) -> VllmEngine:
        """Return an engine for the model of ``plan``; see `parallax_core.api.EngineBackend`."""
        check_version()
        return VllmEngine(plan, _read_settings(plan), is_cpu=is_cpu_build())


def _read_settings(plan: EnginePlan) -> VllmSettings:
    try:
        return VllmSettings(**plan.options)
    except ValueError as error:
        raise ParallaxError(str(error), "`parallax config vllm` explains the options") from error


import_vllm()
