"""What the hub refuses, and what a user is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, SourceContext, UnknownName, silent
from parallax_source_hub.source import HubName, HubSource
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyhub import MODEL, NAME, UNWANTED, child, contents


def test_weights_that_are_pickled_are_refused_before_any_download(hub: FakeHub, source: HubSource) -> None:
    files = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    hub.add(NAME, files | UNWANTED)
    with pytest.raises(ParallaxError, match=r"no \*\.safetensors") as caught:
        source.fetch(NAME, silent)
    assert "GGUF" in caught.value.hint
    hub.add(NAME, files | {"pytorch_model.bin": b"pickled"})
    with pytest.raises(ParallaxError, match=r"no \*\.safetensors") as caught:
        source.fetch(NAME, silent)
    assert "pickled" in caught.value.hint
    assert hub.fetched() == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_repository_that_is_no_model_is_refused(hub: FakeHub, source: HubSource, name: str) -> None:
    hub.add(NAME, {key: content for key, content in MODEL.items() if key != name})
    with pytest.raises(ParallaxError, match=f"no {name}"):
        source.fetch(NAME, silent)
    assert hub.fetched() == []


def test_an_unknown_repository_and_revision_are_named(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    with pytest.raises(UnknownName, match="has no model no/such"):
        source.fetch("no/such", silent)
    with pytest.raises(UnknownName, match="no revision 'v9'"):
        source.fetch(f"{NAME}@v9", silent)


@pytest.mark.parametrize("name", ["", "/abs/path", "./here", "~/x", "a/b/c", "a/..", "a--b/c", "a/b@", "a b/c", "ä/b"])
def test_names_that_cannot_be_repositories_are_refused(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        HubName.parse(name)
    assert "file:PATH" in caught.value.hint


def test_a_gated_model_asks_for_the_licence_and_the_token(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, MODEL, token="hf_right")
    with pytest.raises(ParallaxError, match="gated") as caught:
        source.fetch(NAME, silent)
    assert "HF_TOKEN" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, MODEL)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    source.fetch(NAME, silent)
    for asked in hub.requests:
        assert ("authorization" in asked.headers) != asked.path.startswith("/storage/")


@pytest.mark.parametrize(("status", "word"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (429, "a while"), (500, "a while")])
def test_a_listing_that_is_refused_says_what_to_do(hub: FakeHub, source: HubSource, status: int, word: str) -> None:
    hub.faults.append(Fault("/main", status=status))
    with pytest.raises(ParallaxError, match=str(status)) as caught:
        source.fetch(NAME, silent)
    assert word in caught.value.hint


def test_a_hub_that_asks_to_wait_is_obeyed(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("/config.json", status=429, headers={"Retry-After": "1"}))
    before = time.monotonic()
    source.fetch(NAME, silent)
    assert time.monotonic() - before >= 1


def test_an_unreachable_hub_is_named(hub: FakeHub, source: HubSource) -> None:
    endpoint = hub.endpoint
    hub.stop()
    with pytest.raises(ParallaxError, match=f"cannot reach {endpoint}") as caught:
        source.fetch(NAME, silent)
    assert "HF_ENDPOINT" in caught.value.hint


@pytest.mark.parametrize("endpoint", ["hub", "ftp://hub", "http://"])
def test_an_endpoint_that_is_no_address_is_named(
    source: HubSource, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ParallaxError, match="HF_ENDPOINT is"):
        source.fetch(NAME, silent)


def test_a_server_that_is_no_hub_is_named(hub: FakeHub, source: HubSource) -> None:
    hub.faults.append(Fault("/main", status=200))
    with pytest.raises(ParallaxError, match="does not answer like a hub"):
        source.fetch(NAME, silent)


def test_a_download_larger_than_the_disk_is_refused_first(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.repos[NAME].sizes["model.safetensors"] = 2**60
    with pytest.raises(ParallaxError, match="GB free"):
        source.fetch(NAME, silent)
    assert "model.safetensors" not in hub.fetched()


def test_a_folder_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, MODEL)
    (tmp_path / "file").write_text("in the way")
    source = HubSource(SourceContext(folder=tmp_path / "file" / "hf"))
    with pytest.raises(ParallaxError, match="cannot write to") as caught:
        source.fetch(NAME, silent)
    assert "PARALLAX_HOME" in caught.value.hint


def test_a_disk_that_fills_up_is_named_and_what_is_here_kept(hub: FakeHub, folder: Path, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    process = child(hub, folder, limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot write to {folder}: File too large" in err.splitlines()[-1]
    assert source.stored() == []
    hub.requests.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]
