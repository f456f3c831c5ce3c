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
        self._found: dict[int | None, ModuleType | None] = {}
        """By number of the device."""
        self._is_on = True

    def choose(self, *, is_on: bool) -> None:
        """Turn the kernels on or off, for the stages of this process."""
        self._is_on = is_on

    def find(self, device: torch.device) -> ModuleType | None:
        """Return `triton_kernels`, or None: it is no CUDA device, there is no Triton, or Triton does not run on it."""
        if device.type != "cuda" or not self._is_on:
            return None
        if device.index not in self._found:
            self._found[device.index] = self._load(device)
        return self._found[device.index]

    def _load(self, device: torch.device) -> ModuleType | None:
        if not torch.cuda.is_available() or torch.version.cuda is None or find_spec("triton") is None:
            _log.debug("%s runs on the kernels of PyTorch: there is no Triton for it", device)
            return None
        try:
            kernels = import_module("parallax_backend_torch.triton_kernels")
            if torch.cuda.get_device_capability(device) < kernels.LEAST_CAPABILITY:
                _log.debug("%s runs on the kernels of PyTorch: it is too old for those in Triton", device)
                return None
            kernels.try_kernels(device)
        except Exception as error:  # noqa: BLE001 -- Triton compiles with the C compiler of the system, which may be missing
            _log.warning("%s runs without kernels in Triton, more slowly: %s", device, error)
            return None
        return kernels


DEVICE_KERNELS = DeviceKernels()
