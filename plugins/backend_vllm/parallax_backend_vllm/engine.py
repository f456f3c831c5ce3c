"""Serves a whole model with vLLM: its scheduler and its model run in child processes of this one."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parallax_backend_vllm.arguments import make_arguments
from parallax_backend_vllm.capabilities import HONOURS, MAX_ANSWERS, MAX_LOGPROBS, SEED
from parallax_backend_vllm.checks import check_adapters, check_device, check_family
from parallax_backend_vllm.compat import ENGINE, check_interface, start_llm
from parallax_backend_vllm.environ import choose_gpu, limit_environ, set_cpu_environ
from parallax_backend_vllm.errors import describe_error, explain_start
from parallax_backend_vllm.families import check_cpu
from parallax_backend_vllm.sampling import make_params
from parallax_backend_vllm.settings import VllmSettings
from parallax_backend_vllm.stats import Recorder
from parallax_backend_vllm.stream import AnswerSource, VllmStream
from parallax_core.api import (
    EngineInfo,
    EnginePlan,
    EngineStats,
    Health,
    InvalidRequest,
    Progress,
    Request,
    Unavailable,
)

LOADING = "vLLM starts, in seconds"
TICK_S = 1.0
"""Seconds between two reports that vLLM still loads."""
STOPPED = "the engine was stopped"

logger = logging.getLogger(__name__)


class VllmEngine:
    """A `TokenEngine`. It belongs to the event loop on which it is started."""

    def __init__(self, plan: EnginePlan, settings: VllmSettings, *, is_cpu: bool) -> None:
        """Serve the model of ``plan``; nothing is loaded before `start`."""
        self._plan = plan
        self._settings = settings
        self._is_cpu = is_cpu
        self._llm: Any = None
        self._health = Health(state="starting")
        self._recorder = Recorder()
        self._streams: set[VllmStream] = set()
        self._loras: dict[str, Any] = {}

    async def start(self) -> None:
        """Start vLLM and load the model; the event loop waits for it.

        Raises:
            ParallaxError: if vLLM cannot serve the model with these options; the message says why.
        """
        await asyncio.sleep(0)
        if self._health.state != "starting":
            raise Unavailable(STOPPED)
        try:
            with report_time(self._plan.progress):
                self._llm = self._open()
        except Exception as error:
            found = explain_start(error)
            self._health = Health(state="failed", reason=found.message)
            raise found from error
        self._recorder.num_blocks = self._llm.vllm_config.cache_config.num_gpu_blocks or 0
        self._health = Health(state="ready")

    async def stop(self) -> None:
        """End every stream, and vLLM with its processes."""
        if self._health.state != "failed":
            self._health = Health(state="draining", reason=STOPPED)
        for stream in list(self._streams):
            stream.end("aborted", STOPPED)
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def submit(self, request: Request) -> VllmStream:
        """Start to answer a request; see `Engine.submit`."""
        health = self.health()
        if health.state != "ready":
            raise Unavailable(f"the engine is {health.state}", health.reason)
        if request.adapter and request.adapter not in self._loras:
            known = ", ".join(self._loras) or "none"
            raise InvalidRequest(f"there is no adapter {request.adapter!r}", "adapter", f"the adapters are: {known}")
        sources = [self._ask(request, index) for index in range(request.n)]
        stream = VllmStream(request, sources, self._streams.discard)
        self._streams.add(stream)
        return stream

    def health(self) -> Health:
        """Return the health; failed once vLLM has lost a process."""
        if self._health.state == "ready" and self._llm.errored:
            self._health = Health(state="failed", reason=f"vLLM has ended: {describe_error(self._llm.dead_error)}")
        return self._health

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics of vLLM; see `Measured`."""
        return (self._recorder.read(len(self._streams)),)

    @property
    def info(self) -> EngineInfo:
        """The properties of the engine; it has started."""
        config = self._llm.vllm_config
        model, scheduler = config.model_config, config.scheduler_config
        return EngineInfo(
            num_layers=model.get_total_num_hidden_layers(),
            vocab_size=model.get_vocab_size(),
            context_length=model.max_model_len,
            max_running=scheduler.max_num_seqs,
            max_batch_tokens=scheduler.max_num_batched_tokens,
            seed=SEED,
            honours=HONOURS if self._loras else HONOURS - {"adapter"},
            max_answers=MAX_ANSWERS,
            max_logprobs=MAX_LOGPROBS,
            device="cpu (vLLM)" if self._is_cpu else "CUDA (vLLM)",
            dtype=str(model.dtype).removeprefix("torch."),
        )

    def _open(self) -> Any:  # noqa: ANN401 -- a type of vLLM
        check_device(self._plan, self._settings, is_cpu=self._is_cpu)
        check_interface(ENGINE)
        check_family(self._plan.model)
        if self._is_cpu:
            check_cpu(self._plan)
        check_adapters(self._settings)
        if self._is_cpu:
            set_cpu_environ(self._settings)
        else:
            choose_gpu(self._plan.device)
        from vllm.lora.request import LoRARequest

        adapters = self._settings.adapters.items()
        self._loras = {name: LoRARequest(name, number, path) for number, (name, path) in enumerate(adapters, 1)}
        arguments = make_arguments(self._plan, self._settings, is_cpu=self._is_cpu)
        with limit_environ():
            return start_llm(arguments, self._recorder.record)

    def _ask(self, request: Request, index: int) -> AnswerSource:
        """Return the outputs of vLLM for answer ``index``; it is asked when they are read."""
        from vllm.inputs import tokens_input

        return self._llm.generate(  # type: ignore[no-any-return]
            tokens_input(list(request.prompt), cache_salt=request.salt or None),
            make_params(request, index),
            f"{request.id}-{index}",
            lora_request=self._loras.get(request.adapter),
            priority=request.priority,
        )


@contextmanager
def report_time(progress: Progress) -> Iterator[None]:
    """Report at intervals, from another thread, how many seconds the block has taken."""
    begun, is_over = time.monotonic(), threading.Event()

    def report() -> None:
        while not is_over.wait(TICK_S):
            progress(LOADING, int(time.monotonic() - begun), None, "items")

    thread = threading.Thread(target=report, name="parallax-vllm-loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        seconds = int(time.monotonic() - begun)
        progress(LOADING, seconds, seconds, "items")
