"""Models are fetched to the server's machine over HTTP, without being loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from parallax_core.api import ParallaxError, Progress
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_operate.catalog import ServerCatalog
from tests.unit.server.letters import Site

ADMIN = {"X-Api-Key": "key"}
PATH = "/v1/catalog/downloads"


class SlowCatalog(ServerCatalog):
    """Has models of which each comes when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, threading.Event] = {}
        self.ended: list[str] = []

    def fetch(self, name: str, progress: Progress) -> None:
        if name == "org/bad":
            raise ParallaxError("there is no org/bad", "look again")
        if name == "org/broken":
            raise OSError("the disk is full")
        gate = self.gates.setdefault(name, threading.Event())
        try:
            for part in range(1000):
                progress(f"download {name}", part, 1000)
                if gate.wait(0.01):
                    progress(f"download {name}", 1000, 1000)
                    return
        finally:
            self.ended.append(name)


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> SlowCatalog:
    made = SlowCatalog()
    monkeypatch.setattr("parallax_operate.dialect.ServerCatalog", lambda: made)
    return made


@pytest.fixture
def site(catalog: SlowCatalog) -> Iterator[Site]:
    with Site(options=ServerOptions(keys=ApiKeys({"key": "admin", "user": "user"}))) as site:
        yield site
    assert set(catalog.ended) == set(catalog.gates), "what is fetched ends with the server"


def begin(site: Site, model: str) -> dict[str, Any]:
    answer = site.client.post(PATH, params={"model": model}, headers=ADMIN)
    assert answer.status_code == 202
    found: dict[str, Any] = answer.json()
    return found


def wait_for(site: Site, model: str, state: str) -> dict[str, Any]:
    end = time.monotonic() + 10
    while True:
        listed = site.client.get(PATH, headers=ADMIN).json()["data"]
        found: dict[str, Any] = next(each for each in listed if each["model"] == model)
        if found["state"] == state:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.01)


def test_model_is_fetched_with_progress(site: Site, catalog: SlowCatalog) -> None:
    assert begin(site, "org/one")["state"] == "running"
    while not (found := wait_for(site, "org/one", "running"))["done"]:
        pass
    assert (found["task"], found["total"], found["unit"]) == ("download org/one", 1000, "bytes")
    assert begin(site, "org/one")["model"] == "org/one"
    assert len(site.client.get(PATH, headers=ADMIN).json()["data"]) == 1, "it goes on"
    catalog.gates["org/one"].set()
    assert wait_for(site, "org/one", "done")["error"] is None


def test_download_that_is_stopped_ends(site: Site, catalog: SlowCatalog) -> None:
    begin(site, "org/one")
    wait_for(site, "org/one", "running")
    assert site.client.delete(PATH, params={"model": "org/one"}, headers=ADMIN).status_code == 200
    wait_for(site, "org/one", "stopped")
    assert site.client.delete(PATH, params={"model": "org/two"}, headers=ADMIN).status_code == 404
    begin(site, "org/one")
    wait_for(site, "org/one", "running")
    assert catalog.ended == ["org/one"]


def test_failures_are_told(site: Site) -> None:
    begin(site, "org/bad")
    assert wait_for(site, "org/bad", "failed")["error"] == "there is no org/bad"
    begin(site, "org/broken")
    assert wait_for(site, "org/broken", "failed")["error"] == "OSError: the disk is full"


def test_only_some_are_fetched_at_once(site: Site) -> None:
    for number in range(4):
        begin(site, f"org/{number}")
    refused = site.client.post(PATH, params={"model": "org/5"}, headers=ADMIN)
    assert (refused.status_code, "4 models are being fetched already" in refused.text) == (409, True)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_downloads_are_for_administrators(site: Site, method: str) -> None:
    assert site.client.request(method, f"{PATH}?model=x", headers={"X-Api-Key": "user"}).status_code == 403
