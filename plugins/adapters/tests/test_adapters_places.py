"""Adapters are found by their paths, and fetched from a hub only if an operator allows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from parallax_adapters import places
from parallax_adapters.places import fetched
from parallax_adapters.store import AdapterStore
from parallax_core.api import ParallaxError, UnknownName, Unsupported
from tests.support.fakehub import FakeHub, Fault
from tests.support.tiny_adapters import make_matrices, write_adapter

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    AdapterStore()
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        close_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "made", make_matrices({"layers.0.mlp.up_proj": (6, 8)}))


def put(hub: FakeHub, folder: Path, name: str, *files: str) -> None:
    hub.add(name, {"README.md": b"", **{file: (folder / file).read_bytes() for file in files}})


@pytest.mark.parametrize("place", ["ours/sql", "ours/sql@main", "hf:ours/sql"])
def test_allowed_name_is_fetched_and_leaves_nothing(hub: FakeHub, folder: Path, place: str) -> None:
    put(hub, folder, "ours/sql", *FILES)
    with fetched(place, ["other/*", "ours/*"]) as found:
        key = AdapterStore().add(found)
    assert key == AdapterStore().add(folder)
    assert not found.exists()
    assert not list(found.parent.glob(".new-*"))


@pytest.mark.parametrize("allowed", [[], ["other/*"], ["ours"]])
def test_other_names_are_refused_with_the_setting_and_no_request(hub: FakeHub, allowed: list[str]) -> None:
    with pytest.raises(Unsupported, match="not fetched from a hub") as caught, fetched("ours/sql", allowed):
        pass
    assert "PARALLAX_ADAPTERS__HUB=ours/*" in caught.value.hint
    assert not hub.requests


def test_folder_is_not_asked_for_on_a_hub(hub: FakeHub, folder: Path) -> None:
    write_adapter(Path("ours/sql"), make_matrices({"layers.0.mlp.up_proj": (6, 8)}))
    with fetched("ours/sql", []) as found:
        assert found == Path("ours/sql").absolute()
    with fetched("/srv/none/at/all", ["*"]) as found:
        assert found == Path("/srv/none/at/all")
    assert not hub.requests


def test_what_is_no_adapter_is_refused_by_name(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "adapter_model.bin").write_bytes(b"\x80")
    put(hub, folder, "ours/pickled", FILES[0], "adapter_model.bin")
    put(hub, folder, "ours/large", *FILES)
    monkeypatch.setattr(places, "MOST", {FILES[0]: 2**20, FILES[1]: 20})
    for name, kind, reason in (
        ("pickled", ParallaxError, "ours/pickled has no adapter_model.safetensors"),
        ("large", ParallaxError, r"adapter_model.safetensors of ours/large has \d+ bytes; at most 20"),
        ("none", UnknownName, "has no model ours/none"),
    ):
        with pytest.raises(kind, match=reason), fetched(f"ours/{name}", ["ours/*"]):
            pass
    assert not hub.fetched(), "nothing of them is fetched"
    with pytest.raises(ParallaxError, match="nothing installed fetches adapters of 'x'"), fetched("x:a/b", ["*"]):
        pass


@pytest.mark.parametrize(
    ("fields", "rank", "reason"),
    [
        ({"r": 64}, 4, "has the rank 64; at most 8 is allowed"),
        ({"r": 8, "rank_pattern": {"up_proj": 9}}, 4, "has the rank 9; at most 8"),
        ({"r": 8, "use_dora": True}, 4, "DoRA is not supported"),
        ({"r": 8}, 9, "has the rank 9; at most 8 is allowed"),
    ],
)
def test_rank_is_looked_at_before_the_matrices_are_fetched(
    hub: FakeHub, tmp_path: Path, fields: dict[str, Any], rank: int, reason: str
) -> None:
    size = (2**18, 8)
    large = write_adapter(tmp_path / "large", make_matrices({"layers.0.mlp.up_proj": size}, rank), **fields)
    put(hub, large, "ours/large", *FILES)
    with pytest.raises(Unsupported, match=reason), fetched("ours/large", ["ours/*"], 8):
        pass
    asked = {request.headers["range"] for request in hub.requests if request.path.endswith(FILES[1])}
    assert len(asked) == (2 if rank > 8 else 0), "its length, and its header"
    assert all(int(each.rpartition("-")[2]) < 2**12 for each in asked), "no matrix is fetched"


def test_damaged_file_is_refused(hub: FakeHub, folder: Path) -> None:
    put(hub, folder, "ours/sql", *FILES)
    hub.faults.append(Fault("", corrupt=True, times=9))
    with pytest.raises(ParallaxError), fetched("ours/sql", ["ours/*"]):
        pass
    assert not list((Path(os.environ["PARALLAX_HOME"]) / "cache/adapters").iterdir())
