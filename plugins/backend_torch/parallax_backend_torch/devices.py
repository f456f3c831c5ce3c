"""Chooses the device, the dtype and the number of threads of a stage."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterable

import torch

from parallax_backend_torch.device_kernels import DEVICE_KERNELS
from parallax_backend_torch.gpu_claim import GpuClaim, claim_gpu
from parallax_backend_torch.kernels.library import choose_kernels, describe_kernels, find_library, set_threads
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.settings import TorchSettings
from parallax_backend_torch.sizes import KIND_BYTES, choose_kind
from parallax_backend_torch.tensor_file import TensorFile
from parallax_core.api import Machine, StagePlan, Tensor, Unsupported, check_device
from parallax_sampling_torch.tensors import DTYPES, name_dtype

CPU_DTYPES = ("float32", "bfloat16")
CUDA_DTYPES = ("float32", "float16", "bfloat16")
MATRIX = 2
KV_HINT = "set PARALLAX_TORCH__KV_CACHE_DTYPE=auto, or serve on the CPU with --device cpu"


def list_devices() -> list[str]:
    """Return the names of the available devices, best first."""
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [*(["cuda"] if found else []), *found, "cpu"]


def choose_device(plan: StagePlan) -> torch.device:
    """Return the device of a plan, or the best one if it names none.

    Raises:
        Unsupported: if there is no device of that name, or it does not support the plan's dtype.
    """
    names = list_devices()
    check_device(plan, (*CPU_DTYPES, "float16"), names)
    name = plan.device or names[0]
    check_device(plan, CUDA_DTYPES if name.startswith("cuda") else CPU_DTYPES, names)
    return torch.device(name)


def claim_device(plan: StagePlan) -> GpuClaim:
    """Return the device of a plan; of several GPUs, if it names none, one that no other stage has claimed.

    Raises:
        Unsupported: see `choose_device`.
    """
    device = choose_device(plan)
    count = torch.cuda.device_count() if device.type == "cuda" and not plan.device else 0
    if count > 1:
        return claim_gpu({f"cuda:{number}": find_room(torch.device("cuda", number)) for number in range(count)})
    return GpuClaim(str(device))


def choose_factory(
    plan: StagePlan, settings: TorchSettings, tensors: Iterable[Tensor], *, has_codes: bool = False
) -> LayerFactory:
    """Return the device and the dtypes of a stage; on a CPU, set the number of threads too.

    Args:
        plan: the plan of the stage.
        settings: the options of this backend.
        tensors: the tensors of the checkpoint to load.
        has_codes: whether some of its weights are quantised, and so are exact in float32 alone.

    Raises:
        Unsupported: see `choose_device`; or if the device cannot keep keys and values in int8.
    """
    device = choose_device(plan)
    stored = find_stored(tensors)
    if settings.kv_cache_dtype == "int8" and device.type != "cpu":
        raise Unsupported(f"kv_cache_dtype is int8, which {device.type} does not have", KV_HINT)
    if device.type == "cpu":
        use_kernels(settings)
        start_threads(settings.threads or Machine().count_cores())
        narrow = plan.dtype == "bfloat16"
        return LayerFactory(
            device,
            torch.float32,
            choose_kind(
                plan.dtype,
                settings.weights,
                name_dtype(stored),
                has_codes=has_codes,
                has_kernels=find_library() is not None,
            ),
            _choose_kept(settings, narrow=narrow),
            keeps_blocks=settings.weights == "auto",
            narrow=narrow,
        )
    DEVICE_KERNELS.choose(is_on=settings.kernels != "off")
    dtype = stored if plan.dtype == "auto" else DTYPES[plan.dtype]
    return LayerFactory(device, dtype, "float32" if dtype == torch.float32 else "bfloat16", dtype)


def estimate_bytes(file: TensorFile, factory: LayerFactory) -> int:
    """Return the approximate bytes of tensors after loading."""
    loaded = file.names - file.left_out
    return int(sum(math.prod(file.read_shape(name)) * _choose_bytes(file, name, factory) for name in loaded))


def use_kernels(settings: TorchSettings) -> None:
    """Apply the setting of the compiled kernels. With the default, they are in use already if they load."""
    if settings.kernels != "auto":
        choose_kernels(settings.kernels)


def start_threads(count: int) -> None:
    """Set the number of threads that compute in this process: those of the kernels, or without kernels, PyTorch's.

    Not both: waiting threads keep a core busy for a while, and would take it from the others.
    """
    torch.set_num_threads(1 if find_library() is not None else count)
    set_threads(count)


def find_stored(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the floating dtype of most numbers in matrices."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) >= MATRIX and "float" in tensor.dtype:
            sizes[tensor.dtype] += memoryview(tensor.data).nbytes
    return DTYPES[sizes.most_common(1)[0][0]] if sizes else torch.float32


def describe_device(factory: LayerFactory, forms: Iterable[str] = ()) -> str:
    """Return a description of a stage's device and dtypes; ``forms`` are the types of its GGUF tensors."""
    if factory.device.type == "cuda":
        return f"CUDA ({torch.cuda.get_device_name(factory.device)})"
    kept = sorted(set(forms)) if factory.keeps_blocks else []
    cache = "; int8 keys and values" if factory.kept == torch.int8 else ""
    return f"cpu ({describe_kernels()}; {', '.join(kept) or factory.kind} weights{cache})"


def find_room(device: torch.device) -> int:
    """Return the bytes that are free for weights and pages on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    machine = Machine()
    room = machine.free_memory()
    return machine.total_memory() if room is None else room


def free_memory(device: torch.device) -> None:
    """Return cached memory to the device, so that it counts as free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def check_device_works(device: torch.device) -> None:
    """Compute something on a device, and wait for it.

    Raises:
        RuntimeError: if the device fails.
    """
    total = int(torch.ones(8, device=device).sum())
    if total != 8:  # noqa: PLR2004 -- the number of ones
        raise RuntimeError(f"the sum of eight ones is {total}")


def _choose_kept(settings: TorchSettings, *, narrow: bool) -> torch.dtype:
    """Return the dtype of keys and values on a CPU."""
    if settings.kv_cache_dtype == "int8":
        return torch.int8
    return torch.bfloat16 if narrow else torch.float32


def _choose_bytes(file: TensorFile, name: str, factory: LayerFactory) -> float:
    kind = file.find_kind(name)
    if kind is None or not factory.keeps_blocks or factory.device.type != "cpu":
        return factory.item_bytes
    return KIND_BYTES[kind]
