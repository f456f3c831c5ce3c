"""Every use of SGLang's undocumented parts, and a check at load that none has moved."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parallax_backend_sglang.frames import Load
from parallax_backend_sglang.versions import REMEDY, explain_unsupported, find_installed
from parallax_core.api import BackendFailed, EngineInfo, Unsupported

Interface = Mapping[str, Sequence[str]]
"""Objects of SGLang, and the parameters, fields or attributes that each must have."""

ENGINE: Interface = {
    "sglang.srt.entrypoints.engine:Engine": ("get_server_info", "async_load_lora_adapter"),
    "sglang.srt.entrypoints.engine:Engine.async_generate": (
        *("input_ids", "sampling_params", "stream", "rid", "priority", "cache_salt", "lora_path"),
        *("return_logprob", "logprob_start_len", "top_logprobs_num"),
    ),
    "sglang.srt.server_args:ServerArgs": (
        *("model_path", "skip_tokenizer_init", "device", "dtype", "context_length", "mem_fraction_static"),
        *("max_total_tokens", "max_running_requests", "chunked_prefill_size", "tp_size", "base_gpu_id"),
        *(
            "quantization",
            "attention_backend",
            "sampling_backend",
            "grammar_backend",
            "disable_overlap_schedule",
            "sleep_on_idle",
        ),
        *("disable_radix_cache", "log_level", "incremental_streaming_output"),
        *("enable_lora", "max_loras_per_batch", "max_loaded_loras", "max_lora_rank", "lora_target_modules"),
        *("enable_priority_scheduling", "schedule_low_priority_values_first", "disable_priority_preemption"),
    ),
    "sglang.srt.sampling.sampling_params:SamplingParams": (
        *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "stop_token_ids", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "logit_bias"),
    ),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager": ("abort_request", "get_loads"),
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.abort_request": ("rid",),
    "sglang.srt.managers.load_snapshot:LoadSnapshot": (
        *("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens"),
    ),
    "sglang.srt.models.registry:ModelRegistry": ("get_supported_archs",),
}
"""What an engine for a whole model uses."""


def check_interface(interface: Interface) -> None:
    """Import SGLang and check its version and the parts of it that are used.

    Raises:
        Unsupported: if its version is not supported, or a part has moved; the message names every such part.
        BackendFailed: if it cannot be imported.
    """
    version = find_installed()
    if reason := explain_unsupported(version):
        raise Unsupported(reason, REMEDY)
    try:
        importlib.import_module("sglang")
    except Exception as error:
        message = f"sglang {version} cannot be imported: {type(error).__name__}: {error}"
        raise BackendFailed(message, f"make its environment again: {REMEDY}") from error
    with _quiet():
        moved = [text for path, names in interface.items() if (text := _describe_moved(path, names))]
    if moved:
        message = f"sglang {version} lacks parts that this backend uses: {'; '.join(moved)}"
        raise Unsupported(message, f"install a release that it supports: {REMEDY}")


def check_architecture(architecture: str) -> None:
    """Refuse a model whose family SGLang does not have on this machine.

    Raises:
        Unsupported: if there is no such family.
    """
    with _quiet():
        known = find("sglang.srt.models.registry:ModelRegistry").get_supported_archs()
    if architecture not in known:
        message = f"SGLang {find_installed()} cannot run {architecture or 'a model without architectures'} here"
        raise Unsupported(message, "choose another --backend; some families need kernels that have no CPU build")


def make_engine(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- SGLang has no types
    """Return a started engine."""
    return find("sglang.srt.entrypoints.engine:Engine")(**arguments)


def describe_engine(engine: Any) -> EngineInfo:  # noqa: ANN401
    """Return the properties of an engine, apart from those that this backend decides; its loop must not run yet."""
    server, model = engine.get_server_info(), engine.tokenizer_manager.model_config
    return EngineInfo(
        num_layers=model.num_hidden_layers,
        vocab_size=model.vocab_size,
        context_length=server["max_req_input_len"],
        max_running=server["internal_states"][0]["effective_max_running_requests_per_dp"],
        max_batch_tokens=_read_chunk(server),
        seed="none",
        dtype=str(model.dtype).removeprefix("torch."),
    )


def find_eos_ids(engine: Any) -> frozenset[int]:  # noqa: ANN401
    """Return the tokens at which SGLang ends an answer by itself."""
    return frozenset(engine.tokenizer_manager.model_config.hf_eos_token_id or ())


async def read_load(engine: Any) -> Load:  # noqa: ANN401
    """Return the load of an engine, summed over its data-parallel parts."""
    loads = await engine.tokenizer_manager.get_loads()
    names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens")
    return Load(*(sum(getattr(load, name) for load in loads) for name in names))


async def load_adapter(engine: Any, name: str, folder: str) -> None:  # noqa: ANN401
    """Load a LoRA adapter.

    Raises:
        BackendFailed: if SGLang cannot load it.
    """
    result = await engine.async_load_lora_adapter(name, folder)
    if not result.success:
        raise BackendFailed(f"the adapter cannot be loaded: {str(result.error_message)[:500]}")


def unlink_shared_memory(engine: Any) -> None:  # noqa: ANN401
    """Remove the name of the shared memory with the load, which SGLang would leave behind; both ends have it open."""
    engine.loop.run_until_complete(engine.tokenizer_manager.get_loads())
    if (path := getattr(engine.tokenizer_manager.load_snapshot_reader, "path", None)) is not None:
        Path(path).unlink(missing_ok=True)


def abort(engine: Any, rid: str) -> None:  # noqa: ANN401
    """Abort a request; does nothing if SGLang does not know it."""
    engine.tokenizer_manager.abort_request(rid)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log no warnings, such as those about families that SGLang cannot import here."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _read_chunk(server: Mapping[str, Any]) -> int:
    chunk = server.get("chunked_prefill_size") or 0
    return int(chunk if chunk > 0 else server["max_prefill_tokens"])


def _describe_moved(path: str, names: Sequence[str]) -> str:
    try:
        found = find(path)
    except (ImportError, AttributeError) as error:
        return f"{path} ({error})"
    known = _list_names(found)
    missing = [name for name in names if name not in known]
    return f"{', '.join(missing)} of {path}" if missing else ""


def find(path: str) -> Any:  # noqa: ANN401
    """Return the object at ``module:name.attribute``, or the module at ``module``."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def _list_names(found: Any) -> set[str]:  # noqa: ANN401
    """Return the parameters of a function, or the attributes and fields of a class."""
    if inspect.isfunction(found):
        return set(inspect.signature(found).parameters)
    bases = inspect.getmro(found) if inspect.isclass(found) else ()
    return {*dir(found), *(name for base in bases for name in getattr(base, "__annotations__", ()))}
