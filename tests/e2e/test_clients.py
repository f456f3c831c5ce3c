"""What the official client is checked for beside others, in `benchmarks`, and what the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.__main__ import OFFICIAL, run_checks
from tests.e2e.conftest import ROOT, Server


@pytest.mark.nightly
@pytest.mark.parametrize("clients", [OFFICIAL[:1], OFFICIAL[1:]])
def test_official_clients_get_all_they_ask_for(
    clients: tuple[str, ...], model_home: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(model_home))
    reports = run_checks(model_folder, list(clients))
    assert [report["client"] for report in reports] == list(clients)
    assert all(report["passed"] >= 5 for report in reports)
    assert [report["failures"] for report in reports] == [{}] * len(clients)


def test_program_in_the_readme_prints_the_answer(server: Server) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "http://127.0.0.1:8000/v1" in program
    command = [sys.executable, "-c", program.replace("http://127.0.0.1:8000/v1", server.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "The capital of France is Paris."
