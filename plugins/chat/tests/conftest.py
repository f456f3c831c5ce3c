from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()
