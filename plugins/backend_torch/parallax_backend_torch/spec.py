"""What this distribution offers: the backend ``torch``, and shapes of models without an adapter."""

from __future__ import annotations

import sys

from parallax_core.api import BackendSpec, ModelAdapter, ModelSpec, Ref

OPTIONS = Ref[type[object]]("parallax_backend_torch.settings:TorchSettings")
ESTIMATED = ModelSpec(
    name="estimated",
    summary="any other causal model, as the code of transformers builds it",
    architectures=("*",),
    adapter=Ref[ModelAdapter]("parallax_backend_torch.estimated:ESTIMATED"),
)


def describe_torch() -> BackendSpec:
    """Return the backend, whose rank depends on the system."""
    return BackendSpec(
        name="torch",
        summary="PyTorch: CPUs with kernels of its own, and CUDA",
        probe=Ref("parallax_backend_torch.probe:probe_machine"),
        factory=Ref("parallax_backend_torch.backend:TorchBackend"),
        rank=40 if sys.platform == "darwin" else 60,  # on a Mac, MLX has the GPU
        remedy="reinstall it: pip install --force-reinstall parallax-backend-torch",
        options=OPTIONS,
        size=Ref("parallax_backend_torch.sizes:measure_size"),
        benchmark=Ref("parallax_backend_torch.benchmark:TorchBenchmark"),
        leases=True,
    )
