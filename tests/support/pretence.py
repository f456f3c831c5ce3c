"""Simulates a CUDA device: its tensors report that device, lie in main memory, and do not mix with CPU tensors.

It shows that no tensor is left on the wrong device, and that no CPU kernel receives a tensor of another device. It does
not show that CUDA computes the same, nor that CUDA has the required kernels.

Graphs are simulated too: a replay runs the recorded work again on the same memory. While recording, operations that
CUDA cannot record raise an error: reading values, copies between memories, and shapes that depend on values. It does
not show that CUDA graphs give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode

from parallax_backend_torch import graph_replay as replay
from parallax_backend_torch.cuda_graph import Work
from parallax_backend_torch.device_kernels import DeviceKernels
from parallax_backend_torch.step import Carried

DEVICE = torch.device("cuda", 0)
WHERE = torch.Tensor.device.__get__
MOVES = {torch.Tensor.to, torch.Tensor.copy_}
INDEXED = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
"""Functions whose indices may lie in main memory, as in CUDA."""
READS = {torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__bool__, torch.Tensor.__float__}
ADDRESSES = {torch.Tensor.data_ptr, torch.Tensor.numpy}
COUNTED = {
    torch.nonzero,
    torch.Tensor.nonzero,
    torch.bincount,
    torch.Tensor.bincount,
    torch.masked_select,
    torch.unique,
}
"""Functions whose result has a shape that depends on values."""


class DeviceTensor(torch.Tensor):  # type: ignore[misc]  # torch is not typed here
    """A tensor on the simulated device."""


class Pretence(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Simulates the device while it is entered."""

    records: ClassVar[bool] = False
    """Whether a graph is being recorded."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a torch function as the device would, or raise an error as it would."""
        kwargs = dict(kwargs or {})
        tensors = list(_find_tensors((args, kwargs)))
        is_there = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
        if func == WHERE:
            return DEVICE if is_there else torch.device("cpu")
        if is_there and func in ADDRESSES:
            raise RuntimeError(f"{func} of a tensor on {DEVICE}")
        if is_there and func not in MOVES:
            _check_mixture(func, args, tensors)
        wanted = _find_device((*args, *kwargs.values()))
        if self.records:
            _check_recorded(func, args, is_there, wanted)
        if wanted is not None:
            is_there = wanted.type == DEVICE.type
            args, kwargs = _map((args, kwargs), torch.device, lambda _: torch.device("cpu"))
        elif func is torch.Tensor.copy_:
            is_there = isinstance(args[0], DeviceTensor)
        elif func is torch.Tensor.cpu:
            is_there = False
        plain = _map((args, kwargs), DeviceTensor, lambda tensor: tensor.as_subclass(torch.Tensor))
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*plain[0], **plain[1])
        return _map(found, torch.Tensor, lambda tensor: tensor.as_subclass(DeviceTensor if is_there else torch.Tensor))


class Recorder:
    """A `parallax_backend_torch.cuda_graph.Graph`."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self) -> None:
        self.num_replays = 0
        self.made.append(self)

    def record(self, work: Work) -> Carried:
        """Run ``work`` once as a warm-up and once recorded, and keep it for replays."""
        work()
        self._work, Pretence.records = work, True
        try:
            self._found = work()
        finally:
            Pretence.records = False
        return self._found

    def replay(self) -> None:
        """Run the recorded work on the current contents of memory."""
        self.num_replays += 1
        for kept, found in zip(_find_tensors(self._found), _find_tensors(self._work()), strict=True):
            kept.copy_(found)


def pretend_device(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Make torch report a device with ``room`` bytes of memory; computes on one thread."""
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "pretended")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (room, room))
    monkeypatch.setattr(replay, "prepare_graphs", lambda _: Recorder)
    monkeypatch.setattr(DeviceKernels, "find", lambda *_: None)
    monkeypatch.setattr(Recorder, "made", [])


def _check_recorded(func: Any, args: Sequence[Any], is_there: bool, wanted: torch.device | None) -> None:
    """Raise an error for an operation that cannot be recorded."""
    moves = func is torch.Tensor.to and wanted is not None and (wanted.type == DEVICE.type) != is_there
    moves |= func is torch.Tensor.copy_ and isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor)
    uploads = func in {torch.tensor, torch.as_tensor} and wanted is not None and wanted.type == DEVICE.type
    counts = is_there and (func in READS | COUNTED or func is torch.Tensor.cpu)
    if moves or uploads or counts or (func in INDEXED and is_there and not _is_fixed(args[1])):
        raise RuntimeError(f"{func} cannot be recorded")


def _is_fixed(index: Any) -> bool:
    """Return whether an index needs no data from main memory and gives a shape known in advance."""
    if isinstance(index, tuple):
        return all(_is_fixed(each) for each in index)
    if isinstance(index, torch.Tensor):
        return isinstance(index, DeviceTensor) and index.dtype != torch.bool
    return not isinstance(index, list)


def _check_mixture(func: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    others = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor) and tensor.dim()]
    if func in INDEXED:
        allowed = list(_find_tensors(args[1])) if isinstance(args[0], DeviceTensor) else []
        others = [tensor for tensor in others if not any(tensor is each for each in allowed)]
    if others:
        raise RuntimeError(
            f"{func} is given tensors on {DEVICE} and others of {[tuple(each.shape) for each in others]}"
        )


def _find_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _find_tensors(each)
    elif isinstance(value, Carried):
        yield from _find_tensors([value.hidden, value.others])
    elif isinstance(value, dict):
        yield from _find_tensors(list(value.values()))


def _find_device(values: Sequence[Any]) -> torch.device | None:
    return next((value for value in values if isinstance(value, torch.device)), None)


def _map(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):  # torch's named tuples accept an iterable too
        return type(value)(_map(each, kind, change) for each in value)
    if isinstance(value, dict):
        return {key: _map(each, kind, change) for key, each in value.items()}
    return value
