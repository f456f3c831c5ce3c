from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from parallax_cluster.node.profile.speed_cache import FOLDER, MeasuredSpeed, find_speed, keep_speed, measuring_alone
from parallax_core.contracts.device import DeviceSpeed

KEY = ["machine", "torch", "1.0"]
SPEED = MeasuredSpeed(KEY, DeviceSpeed(flops=1e12, bandwidth=1e10, step_s=1e-3), 1e9)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    return tmp_path / "cache" / FOLDER


def test_speed_is_found_by_its_key() -> None:
    assert find_speed(KEY) is None
    keep_speed(SPEED)
    assert find_speed(KEY) == SPEED
    assert find_speed([*KEY[:-1], "1.1"]) is None


@pytest.mark.parametrize("text", ["", "{}", '{"key": [], "speed": 1, "disk_bandwidth": 1}', "\0"])
def test_damaged_file_is_measured_again(home: Path, text: str) -> None:
    keep_speed(SPEED)
    (file,) = home.iterdir()
    file.write_text(text)
    assert find_speed(KEY) is None
    keep_speed(SPEED)
    assert find_speed(KEY) == SPEED


def test_file_of_another_key_does_not_count(home: Path) -> None:
    keep_speed(SPEED)
    (file,) = home.iterdir()
    file.write_text(file.read_text().replace("torch", "mlx"))
    assert find_speed(KEY) is None


def test_only_one_process_measures_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(parents=True, exist_ok=True)
    other = FileLock(home / "measuring.lock")
    with measuring_alone(), pytest.raises(Timeout):
        other.acquire(timeout=0)
    monkeypatch.setattr("parallax_cluster.node.profile.speed_cache.ALONE_S", 0.01)
    with other:  # one that hangs is not waited for for ever
        with measuring_alone():
            pass
        with pytest.raises(Timeout):
            FileLock(home / "measuring.lock", timeout=0).acquire()
