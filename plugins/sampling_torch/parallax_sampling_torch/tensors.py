"""Converts between the tensors of PyTorch and bytes: of other stages, of files, and of arrays."""

from __future__ import annotations

import warnings
from array import array
from typing import Any

import torch

from parallax_core.api import Tensor

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
CODES = {"i": torch.int32, "q": torch.int64, "f": torch.float32}


def read_tensor(tensor: Tensor) -> torch.Tensor:
    """Return ``tensor`` over the same memory, which must not be written to.

    Raises:
        ValueError: if its dtype is not supported.
    """
    if tensor.dtype not in DTYPES:
        raise ValueError(f"a tensor is {tensor.dtype}; it must be one of {', '.join(DTYPES)}")
    dtype = DTYPES[tensor.dtype]
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about memory that is not writable
        return torch.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)


def write_tensor(found: torch.Tensor) -> Tensor:
    """Return a copy of ``found``, of one of the floating dtypes, as bytes."""
    data = bytearray(found.numel() * found.element_size())
    if data:
        torch.frombuffer(data, dtype=found.dtype).copy_(found.detach().reshape(-1))
    return Tensor(name_dtype(found.dtype), tuple(found.shape), data)


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of ``dtype``, such as ``bfloat16``."""
    return str(dtype).rpartition(".")[2]


def send(words: array[Any], device: torch.device) -> torch.Tensor:
    """Return a copy of numbers on a device; on CUDA, without waiting for the work before it."""
    is_cuda = device.type == "cuda"  # which takes a copy first of memory that is not pinned
    return upload(words).to(device, non_blocking=is_cuda)


def upload(words: array[Any]) -> torch.Tensor:
    """Return numbers as a tensor over the memory of the array."""
    dtype = CODES[words.typecode]
    return torch.frombuffer(words, dtype=dtype) if words else torch.empty(0, dtype=dtype)
