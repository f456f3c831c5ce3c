"""A CUDA device that is pretended: tensors that say they lie there, lie in main memory, and mix with no others.

It shows that nothing is left on the wrong device, and that no kernel of the CPU gets hold of what is on another; not
that CUDA computes the same, nor that it has kernels for what is asked of it.

Graphs are pretended too: what is recorded is run again on the same memory. While it is recorded, what CUDA cannot
record raises: reading back, moving between memories, shapes that depend on numbers. That graphs of CUDA give the same
is not shown by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode

from parallax_backend_torch import graph_replay as replay
from parallax_backend_torch.cuda_graph import Work

DEVICE = torch.device("cuda", 0)
WHERE = torch.Tensor.device.__get__
MOVES = {torch.Tensor.to, torch.Tensor.copy_}
INDEXED = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
"""CUDA takes indices from main memory too."""
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
"""Of a shape that depends on numbers."""


class There(torch.Tensor):  # type: ignore[misc]  # torch is not typed here
    """A tensor on the device."""


class Pretence(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Pretends while it is entered."""

    records: ClassVar[bool] = False
    """Whether a graph is being recorded."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch as the device would, or raise as it would."""
        kwargs = dict(kwargs or {})
        tensors = list(_find_tensors((args, kwargs)))
        is_there = any(isinstance(tensor, There) for tensor in tensors)
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
            is_there = isinstance(args[0], There)
        elif func is torch.Tensor.cpu:
            is_there = False
        plain = _map((args, kwargs), There, lambda tensor: tensor.as_subclass(torch.Tensor))
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*plain[0], **plain[1])
        return _map(found, torch.Tensor, lambda tensor: tensor.as_subclass(There if is_there else torch.Tensor))


class Recorder:
    """A `parallax_backend_torch.cuda_graph.Graph`."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self) -> None:
        self.num_replays = 0
        self.made.append(self)

    def record(self, work: Work) -> torch.Tensor:
        """Run ``work`` as it is, and then as what is recorded; keep it."""
        work()
        self._work, Pretence.records = work, True
        try:
            self._found = work()
        finally:
            Pretence.records = False
        return self._found

    def replay(self) -> None:
        """Run it again, on what is in memory now."""
        self.num_replays += 1
        self._found.copy_(self._work())


def pretend_device(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let there be a device with ``room`` bytes, where `Pretence` is entered, that computes on one thread."""
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "pretended")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (room, room))
    monkeypatch.setattr(replay, "prepare_graphs", lambda _: Recorder)
    monkeypatch.setattr(Recorder, "made", [])


def _check_recorded(func: Any, args: Sequence[Any], is_there: bool, wanted: torch.device | None) -> None:
    """Refuse what cannot be recorded."""
    moves = func is torch.Tensor.to and wanted is not None and (wanted.type == DEVICE.type) != is_there
    moves |= func is torch.Tensor.copy_ and isinstance(args[0], There) != isinstance(args[1], There)
    uploads = func in {torch.tensor, torch.as_tensor} and wanted is not None and wanted.type == DEVICE.type
    counts = is_there and (func in READS | COUNTED or func is torch.Tensor.cpu)
    if moves or uploads or counts or (func in INDEXED and is_there and not _is_fixed(args[1])):
        raise RuntimeError(f"{func} cannot be recorded")


def _is_fixed(index: Any) -> bool:
    """Whether what is indexed needs nothing from main memory, and has a shape that is known before."""
    if isinstance(index, tuple):
        return all(_is_fixed(each) for each in index)
    if isinstance(index, torch.Tensor):
        return isinstance(index, There) and index.dtype != torch.bool
    return not isinstance(index, list)


def _check_mixture(func: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    others = [tensor for tensor in tensors if not isinstance(tensor, There) and tensor.dim()]
    if func in INDEXED:
        allowed = list(_find_tensors(args[1])) if isinstance(args[0], There) else []
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
    elif isinstance(value, dict):
        yield from _find_tensors(list(value.values()))


def _find_device(values: Sequence[Any]) -> torch.device | None:
    return next((value for value in values if isinstance(value, torch.device)), None)


def _map(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):  # those with names, which torch returns, are made like this too
        return type(value)(_map(each, kind, change) for each in value)
    if isinstance(value, dict):
        return {key: _map(each, kind, change) for key, each in value.items()}
    return value
