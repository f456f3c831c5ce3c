from __future__ import annotations

import pytest

from parallax_backend_mlx import plugin
from parallax_backend_mlx.settings import KERNEL_VARIABLE, VARIABLE, MlxSettings, apply_settings
from parallax_core.api import ParallaxError
from parallax_core.config.config import Config
from parallax_core.config.source import SettingOrigin, WrittenSetting
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


@pytest.mark.parametrize(("given", "value"), [("off", "off"), ("/lib/own.so", "/lib/own.so"), ("auto", None)])
def test_blas_of_a_file_is_put_where_it_is_looked_for(
    given: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environ)
    record = PluginRecord(name="mlx", distribution="d", version="1", module=plugin.__name__, state="loaded")
    host = PluginHost([(record, plugin)])
    host.configure(Config({"mlx": {"blas": WrittenSetting(given, SettingOrigin("file", "parallax.toml"))}}))
    assert [each.state for each in host.records] == ["loaded"]
    assert environ.get(VARIABLE) == value


def test_kernel_of_a_file_is_put_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environ)
    apply_settings(MlxSettings(kernel="off"))
    assert environ == {KERNEL_VARIABLE: "off"}


def test_kernel_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "of")
    with pytest.raises(ParallaxError, match="of"):
        Config.load().read("mlx", MlxSettings)


def test_blas_of_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    apply_settings(MlxSettings())
    assert Config.load().read("mlx", MlxSettings) == MlxSettings(blas="off")
