from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.config import home


def test_files_of_a_home_are_where_they_always_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    functions = {name: each for name, each in vars(home).items() if getattr(each, "__module__", "") == home.__name__}
    assert {name: str(each().relative_to(tmp_path)) for name, each in functions.items()} == {
        "cluster_file": "cluster/codes.db",
        "plan_file": "cluster/plans.db",
        "event_file": "cluster/events.db",
        "term_file": "cluster/coordinator",
        "term_key_file": "cluster/signing.key",
        "standby_file": "cluster/standby",
        "workers_folder": "workers",
        "joined_folder": "joined",
        "known_terms_file": "joined/terms",
        "rendezvous_folder": "joined/rendezvous",
        "signing_key_file": "joined/signing.key",
    }
    assert list(tmp_path.iterdir()) == []
