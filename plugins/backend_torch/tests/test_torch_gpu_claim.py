"""Stages that name no device take different GPUs, whichever process they are in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parallax_backend_torch import gpu_claim
from parallax_backend_torch.devices import claim_device
from parallax_backend_torch.gpu_claim import GpuClaim, claim_gpu
from parallax_backend_torch.stage import TorchStage
from parallax_core.api import StagePlan
from tests.support.checkpoints import save_family
from tests.support.pretence import Pretence, pretend_device
from tests.support.torch_backend import TorchBackend

FREE = {"cuda:0": 10, "cuda:1": 30, "cuda:2": 20}


def release(claims: list[GpuClaim]) -> None:
    for claim in claims:
        claim.release()


def test_gpu_with_most_memory_is_claimed_once_and_again_when_released(tmp_path: Path) -> None:
    claims = [claim_gpu(FREE, tmp_path) for _ in range(4)]
    assert [claim.device for claim in claims] == ["cuda:1", "cuda:2", "cuda:0", "cuda:1"]
    claims[1].release()
    claims[1].release()
    claims[1] = claim_gpu(FREE, tmp_path)
    assert claims[1].device == "cuda:2"
    release(claims)


def test_claim_holds_for_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from parallax_backend_torch.gpu_claim import claim_gpu; "
        f"claim = claim_gpu({FREE!r}, Path(sys.argv[1])); print(claim.device, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "cuda:1\n"
        claims = [claim_gpu(FREE, tmp_path)]
        other.communicate()
    claims.append(claim_gpu(FREE, tmp_path))
    assert [claim.device for claim in claims] == ["cuda:2", "cuda:1"]
    release(claims)


def test_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_claim.tempfile, "gettempdir", lambda: str(tmp_path))  # type: ignore[attr-defined]
    release([claim_gpu(FREE)])
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["cuda-1"]
    folder.chmod(0o777)
    claims = [claim_gpu(FREE) for _ in range(2)]
    assert [claim.device for claim in claims] == ["cuda:1", "cuda:1"]


def test_stage_claims_a_gpu_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, 2**21)
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(gpu_claim.tempfile, "gettempdir", lambda: str(locks))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    save_family("llama", tmp_path)
    plan = StagePlan(model=tmp_path, dtype="float32")
    with Pretence():
        stage = TorchBackend().open_stage(plan)
        assert isinstance(stage, TorchStage)
        assert stage.claim.device == "cuda:0"
        claims = [claim_device(plan)]
        stage.close()
        claims.append(claim_device(plan))
        assert [claim.device for claim in claims] == ["cuda:1", "cuda:0"]
        release(claims)
        assert claim_device(StagePlan(model=tmp_path, device="cuda:1")).device == "cuda:1"
        assert claim_device(StagePlan(model=tmp_path, device="cpu")).device == "cpu"


def test_stage_that_cannot_be_opened_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, 0)
    monkeypatch.setattr(gpu_claim.tempfile, "gettempdir", lambda: str(tmp_path))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    model = tmp_path / "model"
    model.mkdir()
    save_family("llama", model)
    plan = StagePlan(model=model, dtype="float32")
    with Pretence(), pytest.raises(Exception, match="are free"):
        TorchBackend().open_stage(plan)
    claim = claim_device(plan)
    assert claim.device == "cuda:0"
    claim.release()
