"""What every test of this backend needs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on one thread: tiny models gain nothing by more, and tests may run beside each other."""
    monkeypatch.setenv("PARALLAX_TORCH__THREADS", "1")
