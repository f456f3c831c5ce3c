"""Probes of the toy backend: a good one, and faulty ones."""

from __future__ import annotations

import sys
import time
from types import ModuleType

from parallax_core.api import Availability


def probe_machine() -> Availability:
    return Availability(ok=True, device="toy")


def probe_slowly() -> Availability:
    time.sleep(0.4)
    return probe_machine()


def probe_heavily() -> Availability:
    sys.modules["torch"] = ModuleType("torch")
    return probe_machine()


def probe_badly() -> Availability:
    raise OSError("no such device")


def probe_wordlessly() -> Availability:
    return Availability(ok=False)
