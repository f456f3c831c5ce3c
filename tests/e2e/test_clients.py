"""What the official client is checked for beside others, in `benchmarks`, and what the README shows."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import MODEL, ROOT, Server, start_server

RATE = 10


def test_official_client_gets_all_it_asks_for(server: Server, model_home: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key\n")
    options = ("--api-key-file", str(keys), "--max-per-minute", str(RATE))
    guarded = start_server(model_home, tmp_path / "log", *options)
    try:
        plan = {"url": server.url, "guarded": guarded.url, "key": "a-key", "rate": RATE, "model": MODEL}
        command = [sys.executable, str(ROOT / "benchmarks/guests.py"), "openai", json.dumps(plan)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    finally:
        guarded.end(signal.SIGTERM)
    checks = json.loads(done.stdout.splitlines()[-1])["checks"]
    assert len(checks) >= 15
    assert {name: text for name, text in checks.items() if text} == {}, done.stderr


def test_program_in_the_readme_prints_the_answer(server: Server) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "http://127.0.0.1:8000/v1" in program
    command = [sys.executable, "-c", program.replace("http://127.0.0.1:8000/v1", server.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "The capital of France is Paris."
