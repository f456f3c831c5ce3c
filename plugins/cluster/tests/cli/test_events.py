from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli.events import app, read_duration
from parallax_core.base.errors import UsageError
from tests.support.peer import Peer

EVENT = {"time": 1.5, "kind": "plan", "subject": "toy", "text": "layers 0-3 on a/1"}


def test_events_are_shown_a_line_each(peer: Peer) -> None:
    peer.body = json.dumps({"object": "list", "data": [EVENT]}).encode()
    shown = CliRunner().invoke(app, ["--since", "1h", "--url", peer.url], catch_exceptions=False).output
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  plan          toy  layers 0-3 on a/1\n", shown)
    shown = CliRunner().invoke(app, ["--json", "--url", peer.url], catch_exceptions=False).output
    assert json.loads(shown) == [EVENT]


def test_quiet_time_is_said(peer: Peer) -> None:
    peer.body = b'{"object": "list", "data": []}'
    assert CliRunner().invoke(app, ["--url", peer.url]).output == "nothing has happened\n"


def test_time_has_a_unit() -> None:
    assert [read_duration(text) for text in ("90s", "30m", "1h", "2d")] == [90, 1800, 3600, 172800]
    for text in ("", "1", "h", "-1h", "1h30m", "1.5h", "9999999d"):
        with pytest.raises(UsageError, match="is no time"):
            read_duration(text)
