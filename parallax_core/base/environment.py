"""The environment of processes that must not see keys: they run a model's code or face strangers."""

from __future__ import annotations

import os
import re

KEPT = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "TZ", "USER"),
        *("VIRTUAL_ENV", "XDG_RUNTIME_DIR"),
    }
)
"""Variables that programs need to find their files, and that hold no secret."""
KEPT_PREFIXES = ("DYLD_", "LC_", "LD_", "PYTHON")
"""The beginnings of others: of the linker, the locale and the interpreter."""

ENGINE = frozenset(
    {
        *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "MAX_JOBS", "GLIBC_TUNABLES"),
        *("CURL_CA_BUNDLE", "DO_NOT_TRACK", "NO_COLOR", "REQUESTS_CA_BUNDLE", "TERM"),
        *("PARALLAX_HOME", "PARALLAX_OFFLINE", "PARALLAX_PLUGINS_DISABLED", "PARALLAX_TRACE_HOOKS"),
        *("ALL_PROXY", "FTP_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    }
)
"""Further variables of engines, such as vLLM: of compilers, certificates and proxies (also in small letters)."""
ENGINE_PREFIXES = (
    *("CONDA_", "CUBLAS", "CUDA", "CUDNN", "GPU_", "NCCL_", "NVCC_", "NVIDIA_", "NVSHMEM_", "NVTE_"),
    *("AMD_", "HIP_", "HSA_", "MIOPEN_", "RCCL_", "ROCM_", "ROCR_", "ONEAPI_", "SYCL_", "UR_", "ZE_"),
    *("ATEN_", "DG_", "FLASHINFER_", "FLASH_", "PYTORCH_", "TORCH", "TRITON_", "XLA_"),
    *("GOMP_", "KMP_", "MALLOC_", "MKL_", "NUMBA_", "NUMEXPR_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("GLOO_", "MASTER_", "RAY_", "SGLANG_", "SGL_", "TP_", "UCX_", "VLLM_"),
    *("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "SAFETENSORS_", "SSL_CERT_", "TIKTOKEN_", "TOKENIZERS_", "TQDM_"),
    *("TRANSFORMERS_", "XDG_"),
)
"""The beginnings of others: of devices, of libraries and of the engines themselves."""
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
"""The end of the name of a variable with a secret, whatever its beginning."""
SERVER_PREFIXES = tuple(f"PARALLAX_{section}__" for section in ("JOIN", "RELAY", "RENDEZVOUS", "RUN", "SERVE"))
"""The beginnings of settings of commands that start workers, which may have join codes in them."""


def bare_environment() -> dict[str, str]:
    """Return the variables of this process that any program needs.

    No others: tokens of hubs and clouds, keys of APIs and proxies with passwords have no names that one could list.
    """
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}


def engine_environment() -> dict[str, str]:
    """Return the variables of this process that an engine with code of others needs, such as vLLM.

    No keys and tokens: its model is on this machine, and who may use the server is not its business.
    """
    found = {name: value for name, value in os.environ.items() if name.upper() in ENGINE}
    found |= {name: value for name, value in os.environ.items() if name.startswith(ENGINE_PREFIXES)}
    return bare_environment() | {name: value for name, value in found.items() if not SECRET.search(name)}


def worker_environment() -> dict[str, str]:
    """Return the variables of this process that its workers need: all but what lets someone use or join a server.

    Tokens of hubs stay, since workers fetch their layers.
    """
    return {name: value for name, value in os.environ.items() if not _is_of_server(name)}


def _is_of_server(name: str) -> bool:
    return name.startswith("PARALLAX_") and bool(SECRET.search(name) or name.startswith(SERVER_PREFIXES))
