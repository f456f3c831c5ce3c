from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from parallax_core.server.file_limit import ENOUGH, raise_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_gets_as_many_files_as_it_may(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, ENOUGH) if hard > 0 else ENOUGH, hard)
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_limit_that_cannot_be_raised_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        message = "not today"
        raise ValueError(message)

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", refuse)
        assert raise_limit() == 512
    assert "only 512 open files: not today" in caplog.text
