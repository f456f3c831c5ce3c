"""A deployment is made in Python, without the command line: a small model in two workers of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.api import Request, RequestId, Sampling
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.backend_options import prepare_plugins
from parallax_core.deploy.fixed import read_plan
from parallax_core.plugins.host import PluginHost
from tests.e2e.tiny import write_tiny


@pytest.fixture
def tiny(model_folder: Path, tmp_path: Path) -> str:
    return str(write_tiny(tmp_path / "tiny", model_folder))


async def test_deployment_serves_without_a_command_line(tiny: str, tmp_path: Path) -> None:
    settings = ServeSettings(model=tiny, backend="mlx", stages=2)
    deployment = read_plan(settings, PluginHost.prepare(Config())).prepare(tmp_path)
    prompt = deployment.text.encode("The capital of France is")
    request = Request(id=RequestId("1"), prompt=prompt, max_tokens=5, sampling=Sampling(temperature=0))
    async with deployment.running() as engine:
        assert len([token async for delta in engine.submit(request) for token in delta.tokens]) == 5
        assert [stage.node for replica in engine.describe() for stage in replica.stages] == ["worker/0/0", "worker/0/1"]


async def test_option_of_a_backend_reaches_its_stages(tiny: str, tmp_path: Path) -> None:
    given = ("weights=int8", "threads=1")
    settings = ServeSettings(model=tiny, backend="torch", backend_option=given, stages=2)
    deployment = read_plan(settings, prepare_plugins(settings, Config())).prepare(tmp_path)
    async with deployment.running() as engine:
        devices = [stage.device or "" for replica in engine.describe() for stage in replica.stages]
        assert ["1 threads" in device and "int8 weights" in device for device in devices] == [True, True]
