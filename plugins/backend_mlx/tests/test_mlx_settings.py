from __future__ import annotations

import pytest

from parallax_backend_mlx import plugin
from parallax_backend_mlx.settings import PROCESS, MlxSettings
from parallax_core.api import ParallaxError
from parallax_core.config.config import Config
from parallax_core.config.source import SettingOrigin, WrittenSetting
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


def configure(values: dict[str, str]) -> PluginHost:
    """Return a host of this plugin, configured by a file."""
    record = PluginRecord(name="mlx", distribution="d", version="1", module=plugin.__name__, state="loaded")
    host = PluginHost([(record, plugin)])
    origin = SettingOrigin("file", "parallax.toml")
    host.configure(Config({"mlx": {key: WrittenSetting(value, origin) for key, value in values.items()}}))
    assert [each.state for each in host.records] == ["loaded"]
    return host


@pytest.mark.parametrize("given", ["off", "/lib/own.so", "auto"])
def test_blas_of_a_file_is_known_before_mlx_is_imported(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "blas", "?")
    configure({"blas": given})
    assert PROCESS.blas == given


def test_kernel_of_a_file_is_an_option_of_each_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "blas", "auto")
    host = configure({"kernel": "off"})
    assert host.read_options(host.backends().get("mlx")) == {"blas": "auto", "kernel": "off"}


def test_kernel_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_MLX__KERNEL", "of")
    with pytest.raises(ParallaxError, match="of"):
        Config.load().read("mlx", MlxSettings)


def test_environment_sets_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_MLX__BLAS", "off")
    assert Config.load().read("mlx", MlxSettings) == MlxSettings(blas="off")
