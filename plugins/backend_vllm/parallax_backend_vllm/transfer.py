"""Moves hidden states between the device of vLLM and memory that other stages read."""

from __future__ import annotations

import torch


def to_device(states: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``states`` on a device; to CUDA they are copied from pinned memory, beside what the device computes."""
    if device.type != "cuda":
        return states
    return states.pin_memory().to(device, non_blocking=True)


def to_host(states: torch.Tensor) -> torch.Tensor:
    """Return ``states`` on the CPU; from CUDA they are copied to pinned memory, and only their copy is waited for."""
    if states.device.type != "cuda":
        return states
    host = torch.empty(states.shape, dtype=states.dtype, pin_memory=True)
    host.copy_(states, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return host
