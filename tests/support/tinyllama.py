"""Makes a whole GGUF model of a few kilobytes, and wheels that contain it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 64, 4, 2, 8, 2
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
TOKENS = [*SPECIALS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]

Tensor = npt.NDArray[np.generic]


def default_values() -> dict[str, object]:
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    }


def default_tensors() -> dict[str, Tensor]:
    random = np.random.default_rng(7)

    def draw(*shape: int) -> Tensor:
        return random.standard_normal(shape, np.float32)

    tensors = {"token_embd.weight": draw(len(TOKENS), HIDDEN), "output_norm.weight": draw(HIDDEN)}
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": draw(HIDDEN),
            f"blk.{layer}.attn_q.weight": draw(HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": draw(HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": draw(HIDDEN),
            f"blk.{layer}.ffn_gate.weight": draw(INNER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": draw(INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": draw(HIDDEN, INNER),
        }
    return tensors


@dataclass
class TinyLlama:
    """The contents of a GGUF file, which a test may change before writing; values of None are left out."""

    family: str = "llama"
    values: dict[str, object] = field(default_factory=default_values)
    tensors: dict[str, Tensor] = field(default_factory=default_tensors)
    packing: gguf.GGMLQuantizationType | None = None
    """The quantization of the matrices, or None."""

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.family)
        add = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
        for key, value in self.values.items():
            if value is not None:
                getattr(writer, f"add_{add[type(value)]}")(key, value)
        for name, tensor in self.tensors.items():
            self._add_tensor(writer, name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
        if self.packing is None or tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, self.packing), raw_dtype=self.packing)


@dataclass
class Links:
    """A folder in which pip finds packages."""

    folder: Path

    def add_wheel(self, members: dict[str, bytes], version: str = "1.0", tag: str = "py3-none-any") -> Path:
        """Add a wheel of the project ``tiny``, and return its path."""
        path, info = self.folder / f"tiny-{version}-{tag}.whl", f"tiny-{version}.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return path
