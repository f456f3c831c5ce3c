from __future__ import annotations

import threading

import pytest

from parallax_core.plugins.limit import TimedCall


def test_call_has_its_result_its_error_or_no_end() -> None:
    assert TimedCall(lambda: 7).wait(20) == 7
    call: TimedCall[int] = TimedCall(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            call.wait(20)
    gate = threading.Event()
    slow = TimedCall(gate.wait)
    for limit_s in (0.01, -1.0):
        with pytest.raises(TimeoutError, match="no answer within"):
            slow.wait(limit_s)
    gate.set()
    assert slow.wait(20)
