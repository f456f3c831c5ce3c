from __future__ import annotations

import pytest

from parallax_core.base.environment import bare_environment

NEEDED = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONUTF8", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
SECRET = (
    *("PARALLAX_API_KEY", "PARALLAX_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SESSION_TOKEN", "GITHUB_TOKEN"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "http_proxy", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "WORD"),
)


@pytest.mark.parametrize("name", NEEDED)
def test_what_programs_need_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert bare_environment()[name] == "x"


@pytest.mark.parametrize("name", SECRET)
def test_nothing_else_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in bare_environment()
