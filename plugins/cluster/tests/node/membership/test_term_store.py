from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.membership.term_proof import write_proof
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.base.errors import ParallaxError
from plugins.cluster.tests.membership.terms import OLD, ONE


def test_first_coordinator_begins_a_cluster_of_its_own(tmp_path: Path) -> None:
    one, other = TermStore(tmp_path / "a" / "coordinator"), TermStore(tmp_path / "b")
    state = one.begin("model")
    assert (state.term, state.model, len(state.cluster)) == (1, "model", 16)
    assert one.begin("another") == state
    assert other.begin("model").cluster != state.cluster


def test_state_of_a_coordinator_that_was_taken_over_is_kept(tmp_path: Path) -> None:
    store = TermStore(tmp_path / "coordinator")
    state = msgspec.structs.replace(store.begin("model"), term=2, machines={"desk": b"key"})
    store.keep(state)
    assert TermStore(tmp_path / "coordinator").find() == state


@pytest.mark.parametrize("name", ["proof", "newer"])
def test_damaged_proof_is_an_error(tmp_path: Path, name: str) -> None:
    store = TermStore(tmp_path / "coordinator")
    data = bytearray(write_proof(OLD.begin(ONE)))
    data[-1] ^= 1
    store.keep(msgspec.structs.replace(store.begin("model"), **{name: bytes(data)}))
    with pytest.raises(ParallaxError, match="cannot be read: a signature is wrong"):
        store.find()


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "coordinator"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(ParallaxError, match="cannot be read"):
        TermStore(path).begin("model")
    with pytest.raises(ParallaxError, match="cannot be kept"):
        TermStore(path / "below").keep(TermStore(tmp_path / "new").begin("model"))


def test_cluster_whose_state_cannot_be_kept_begins_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"coordinator.{os.getpid()}.part").mkdir()
    state = TermStore(tmp_path / "coordinator").begin("model")
    assert (state.term, state.model) == (1, "model")
    assert "after a restart of the server its machines need new join codes" in caplog.text
