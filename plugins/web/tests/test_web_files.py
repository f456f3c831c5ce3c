from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from parallax_core.api import HttpSurface
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_web.page_files import POLICY, make_router
from plugins.web.tests.web_site import extend
from tests.unit.server.letters import Site, error_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page, beside a file that is not part of it."""
    (tmp_path / "secret.txt").write_text("hidden")
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><script src=assets/app.js></script>")
    (folder / "assets/app.js").write_text("fetch('/v1/models')")
    (folder / "data.unknown").write_text("<script>alert(1)</script>")
    (folder / ".env").write_text("hidden")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "unreadable.txt").mkdir()
    return folder


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with Site(ServerOptions(keys=ApiKeys({"k": "user"}))) as site:
        assert extend(site, one=lambda server: server.add_page("/chat", folder))[0] == {"one": ""}
        yield site.client


def test_address_of_the_server_leads_to_the_first_page(client: TestClient) -> None:
    moved = client.get("/", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (307, "./chat/")


def test_page_is_at_its_path_with_a_slash(client: TestClient) -> None:
    moved = client.get("/chat", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (308, "./chat/")
    page = client.get("/chat/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "app.js" in page.text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("assets/app.js", "text/javascript; charset=utf-8"),
        ("index.html", "text/html; charset=utf-8"),
        ("data.unknown", "application/octet-stream"),
    ],
)
def test_file_has_its_type_and_a_strict_policy(client: TestClient, name: str, kind: str) -> None:
    for answer in (client.get(f"/chat/{name}"), client.head(f"/chat/{name}")):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        assert int(answer.headers["content-length"]) > 0
    assert client.head(f"/chat/{name}").content == b""
    assert "unsafe" not in POLICY


def test_client_that_has_a_file_gets_it_no_more(client: TestClient) -> None:
    first = client.get("/chat/assets/app.js")
    again = client.get("/chat/assets/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    later = client.get("/chat/assets/app.js", headers={"If-Modified-Since": first.headers["last-modified"]})
    assert later.status_code == 304


@pytest.mark.parametrize(
    "name",
    [
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "assets/%2e%2e/%2e%2e/secret.txt",
        "..%5csecret.txt",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        ".env",
        "link.txt",
        "assets",
        "assets/",
        "unreadable.txt",
        "app%00.js",
        "x" * 3000,
        "nothing.js",
    ],
)
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    answer = client.get(f"/chat/{name}")
    assert "hidden" not in answer.text
    error_of(answer, 404)


@pytest.mark.parametrize("path", ["/", "chat", "/v1", "/session", "/a/b", "/chat/", "/{name}", "/Chat"])
def test_path_that_is_none_for_a_page_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(ValueError, match="is no path for a page"):
        make_router(path, folder)


def test_page_hides_no_route_and_needs_an_index(folder: Path) -> None:
    def add_twice(server: HttpSurface) -> None:
        server.add_page("/chat", folder)
        server.add_page("/chat", folder)

    with Site(ServerOptions()) as site:
        found, _ = extend(
            site,
            health=lambda server: server.add_page("/health", folder),
            none=lambda server: server.add_page("/page", folder / "assets"),
            twice=add_twice,
        )
    assert "/health is taken" in found["health"]
    assert "has no index.html" in found["none"]
    assert "/chat is taken" in found["twice"]
