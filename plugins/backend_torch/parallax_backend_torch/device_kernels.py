"""Chooses the kernels of CUDA devices: Triton's where they run, else those of PyTorch."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

_log = logging.getLogger(__name__)


class DeviceKernels:
    """The kernels in use in this process."""

    def __init__(self) -> None:
        self._found: ModuleType | None = None
        self._is_tried, self._is_on = False, True

    def choose(self, *, is_on: bool) -> None:
        """Turn the kernels on or off, for the stages of this process."""
        self._is_on = is_on

    def find(self, device: torch.device) -> ModuleType | None:
        """Return `triton_kernels`, or None: it is no CUDA device, there is no Triton, or Triton does not run here."""
        if device.type != "cuda" or not self._is_on:
            return None
        if not self._is_tried:
            self._found, self._is_tried = self._load(), True
        return self._found

    def _load(self) -> ModuleType | None:
        if not torch.cuda.is_available() or find_spec("triton") is None:
            return None
        try:
            kernels = import_module("parallax_backend_torch.triton_kernels")
            if torch.version.cuda is None or torch.cuda.get_device_capability() < kernels.LEAST_CAPABILITY:
                return None
            kernels.normalize_rms(torch.ones(1, 8, device="cuda"), torch.ones(8, device="cuda"), 0.0, 0.0).sum().item()
        except Exception as error:  # noqa: BLE001 -- Triton compiles with the C compiler of the system, which may be missing
            _log.warning("CUDA devices run without Triton's kernels, more slowly: %s", error)
            return None
        return kernels


DEVICE_KERNELS = DeviceKernels()
