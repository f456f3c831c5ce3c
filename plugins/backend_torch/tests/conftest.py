"""What every test of this backend needs."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import get_args

import pytest
import torch

from parallax_backend_torch import devices
from parallax_backend_torch.kernels import library

IS_ARM = platform.machine() in {"aarch64", "arm64"}
ISAS: tuple[library.Mode, ...] = ("plain", *get_args(library.ArmMode if IS_ARM else library.X86Mode))


@pytest.fixture(autouse=True)
def _compute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on one thread: tiny models gain nothing by more, and tests may run beside each other."""
    start = devices.start_threads
    monkeypatch.setattr(devices, "start_threads", lambda _: start(1))


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[library.Mode]:
    """Run with the kernels of each instruction set this processor has."""
    mode: library.Mode = request.param
    yield from _choose(mode)


@pytest.fixture(params=["off", *ISAS])
def mode(request: pytest.FixtureRequest) -> Iterator[library.Mode]:
    """Run without the compiled library, and with each instruction set."""
    mode: library.Mode = request.param
    yield from _choose(mode)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Keep torch from waiting, for tiny operations, for threads of its own that other processes hold up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _choose(mode: library.Mode) -> Iterator[library.Mode]:
    native = library.find_library()
    assert native is not None, library.describe_kernels()
    if mode not in ("off", *library.list_isas(native)):
        pytest.skip(f"this processor lacks {mode}")
    found = library.choose_kernels(mode)
    assert found.startswith("torch: turned off" if mode == "off" else f"compiled, {mode}, ")
    yield mode
    library.choose_kernels("auto")
