"""Serves a whole model with vLLM: its scheduler and its model run in child processes of this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from parallax_adapters.engines import EngineAdapters
from parallax_backend_vllm.arguments import make_arguments
from parallax_backend_vllm.capabilities import HONOURS, MAX_ANSWERS, MAX_LOGPROBS, SEED
from parallax_backend_vllm.checks import check_device, check_family
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
        self._adapters = EngineAdapters(plan.model, settings.max_lora_rank)
        self._loras: dict[str, asyncio.Future[Any]] = {}
        """What vLLM calls the adapters, by key, once it has loaded them."""
        self._numbers = count(1)
        self._needs_empty = is_cpu and settings.max_loras > 0
        """Whether requests without an adapter get one that changes nothing: on a CPU, vLLM computes rows without an
        adapter with whatever is in the last place of a batch."""
        self._empty: Path | None = None

    async def start(self) -> None:
        """Start vLLM and load the model; the event loop waits for it.

        Raises:
            ParallaxError: if vLLM cannot serve the model with these options; the message says why.
        """
        await asyncio.sleep(0)
        if self._health.state != "starting":
            raise Unavailable(STOPPED)
        try:
            if self._settings.max_loras:
                await asyncio.to_thread(self._adapters.open)
            if self._needs_empty:
                self._empty = self._adapters.write_empty(Path(tempfile.mkdtemp(prefix="parallax-vllm-")))
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
        if self._empty is not None:
            await asyncio.to_thread(shutil.rmtree, self._empty, ignore_errors=True)

    def submit(self, request: Request) -> VllmStream:
        """Start to answer a request; see `Engine.submit`."""
        health = self.health()
        if health.state != "ready":
            raise Unavailable(f"the engine is {health.state}", health.reason)
        self._check_adapter(request.adapter)
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
            honours=HONOURS if self._settings.max_loras else HONOURS - {"adapter"},
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
        if self._is_cpu:
            set_cpu_environ(self._settings)
        else:
            choose_gpu(self._plan.device)
        arguments = make_arguments(self._plan, self._settings, is_cpu=self._is_cpu)
        with limit_environ():
            return start_llm(arguments, self._recorder.record)

    def _check_adapter(self, key: str) -> None:
        """Find an adapter, and have vLLM load it.

        Raises:
            InvalidRequest: if it is not here, or not for this model.
        """
        if not key and not self._needs_empty:
            return
        if not self._settings.max_loras:
            message = "this engine takes no adapters: max_loras of [vllm] is 0"
            raise InvalidRequest(message, "adapter", "an operator can allow some with PARALLAX_VLLM__MAX_LORAS=4")
        folder, loading = self._adapters.find(key) if key else self._empty, self._loras.get(key)
        assert folder is not None, "it was made at the start"
        if loading is None or (loading.done() and loading.exception() is not None):
            self._loras[key] = asyncio.ensure_future(self._load(key or "none", folder, next(self._numbers)))

    async def _load(self, key: str, folder: Path, number: int) -> Any:  # noqa: ANN401 -- a type of vLLM
        """Load an adapter apart from any step, since a failure in one would end the process of vLLM."""
        from vllm.lora.request import LoRARequest

        lora = LoRARequest(key, number, str(folder))
        await self._llm.add_lora(lora)
        return lora

    async def _ask(self, request: Request, index: int) -> AnswerSource:
        """Yield the outputs of vLLM for answer ``index``."""
        from vllm.inputs import tokens_input

        loading = self._loras.get(request.adapter)
        lora = None if loading is None else await asyncio.shield(loading)
        source = self._llm.generate(
            tokens_input(list(request.prompt), cache_salt=request.salt or None),
            make_params(request, index),
            f"{request.id}-{index}",
            lora_request=lora,
            priority=request.priority,
        )
        async with contextlib.aclosing(source):
            async for output in source:
                yield output


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
