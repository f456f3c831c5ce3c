"""Describes SGLang to core: releases, environment, honoured fields. Imports no SGLang."""

from __future__ import annotations

from parallax_backend_sglang.fields import HONOURED, MAX_ANSWERS, MAX_LOGPROBS
from parallax_backend_sglang.versions import describe_supported
from parallax_core.api import EngineSpec, PipStep, Ref

TORCH = "torch==2.13.0"
"""A PyTorch that the supported releases run with on a CPU."""
WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
LIBRARIES = (
    *("aiohttp", "apache-tvm-ffi", "blobfile", "compressed-tensors", "dill", "distro", "easydict", "einops"),
    *("fastapi", "gguf", "interegular", "IPython", "llguidance", "msgspec", "numpy", "nvidia-ml-py"),
    *("openai", "openai-harmony", "orjson", "packaging", "partial_json_parser", "pillow"),
    *("prometheus-client", "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq", "regex", "requests"),
    *("scipy", "sentencepiece", "setproctitle", "tiktoken", "tokenizers", "tqdm", "transformers"),
    *("uvicorn", "uvloop", "watchfiles", "xxhash", "zstandard"),
)
"""What SGLang imports on a CPU, apart from PyTorch. Its own list of requirements has packages of CUDA, too."""
BARE = ("sglang{release}", "triton==3.9.0", "xgrammar==0.2.7")
"""Packages installed without their requirements, which are among `LIBRARIES` or belong to CUDA."""

ENGINE = EngineSpec(
    module="sglang",
    importing=Ref("parallax_backend_sglang.environment:import_sglang"),
    distributions=("sglang",),
    supported=describe_supported(),
    builds={
        "cpu": (
            # By itself, since the index has nothing else, and is asked for everything that a call of pip installs.
            PipStep(install=(f"{TORCH}+cpu",), options=("--no-deps", "--retries", "1", "--extra-index-url", WHEELS)),
            PipStep(install=BARE, options=("--no-deps",)),
            PipStep(install=(TORCH, *LIBRARIES), as_required_by="sglang"),
        ),
        "cuda": (PipStep(install=("sglang{release}",)),),
    },
    honours=HONOURED | {"adapter"},
    seed="none",
    max_answers=MAX_ANSWERS,
    max_logprobs=MAX_LOGPROBS,
)
