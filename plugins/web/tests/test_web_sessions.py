"""Sessions of browsers, and what an attacker could try with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Request
from starlette.testclient import TestClient

from parallax_core.api import Authenticator, HttpSurface, RouteRole, needs_role
from parallax_core.server import api_keys
from parallax_core.server.api_keys import ApiKeys, KeyFile
from parallax_core.server.options import ServerOptions
from parallax_core.testing.authenticator import AuthenticatorConformance
from parallax_web.page_server import WebPages
from parallax_web.sessions import LINK_S, MOST_LINKS, MOST_SESSIONS, SESSION_S, Sessions
from parallax_web.wrong_tries import MOST_WRONG, WRONG_S, SignInLimit, WrongTries
from plugins.web.tests.web_site import extend
from tests.unit.server.letters import Site, error_of

COOKIE = re.compile(r"(parallax-\d+)=([\w-]{43}); HttpOnly; Max-Age=43200; Path=/; SameSite=strict")
OWN = {"Origin": "http://testserver"}
NEIGHBOUR = {"Origin": "http://testserver:3000", "Sec-Fetch-Site": "same-site"}
"""What a browser sends for a page of another port."""
ADMIN = {"Authorization": "Bearer boss"}


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class PagedSite(Site):
    """A server with keys and a page, whose clock a test sets."""

    def __init__(self, folder: Path, keys: ApiKeys | None = None, **options: Any) -> None:
        self.clock = Clock()
        super().__init__(ServerOptions(keys=keys or ApiKeys({"boss": "admin", "k": "user"}), **options))
        (folder / "index.html").write_text("a page")

        def add(server: HttpSurface) -> None:
            router = APIRouter()

            @router.post("/x/do")
            @needs_role("user")
            async def do(http: Request) -> dict[str, str]:
                return {"role": http.state.role}

            @router.get("/x/admin")
            @needs_role("admin")
            async def see() -> str:
                return "seen"

            server.add_page("/chat", folder)
            server.add_router(router)

        became, self.list_notes = extend(self, WebPages(Sessions(self.clock)), one=add)
        assert became == {"one": ""}

    def make_link(self, role: str = "user", **headers: str) -> Any:
        """Ask for a link, with the key of an administrator."""
        return self.client.post(f"/session/links?page=/chat&role={role}", headers={**ADMIN, **headers})

    def sign_in(self, role: str = "user") -> str:
        """Open a session with a new link, and return the link."""
        link: str = self.make_link(role).json()["url"].removeprefix("http://testserver")
        opened = self.client.get(link, follow_redirects=False)
        assert (opened.status_code, opened.headers["location"]) == (303, "./chat/")
        return link


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PagedSite]:
    with PagedSite(tmp_path) as site:
        yield site


def test_link_opens_a_session_whose_cookie_is_for_this_server_alone(site: PagedSite) -> None:
    [line] = site.list_notes("http://testserver/v1")
    opened = site.client.get(line.partition("minutes: http://testserver")[2], follow_redirects=False)
    assert COOKIE.fullmatch(opened.headers["set-cookie"]), opened.headers["set-cookie"]
    assert opened.headers["cache-control"] == "no-store"
    assert opened.headers["referrer-policy"] == "no-referrer"
    assert "code" not in opened.headers["location"]
    assert site.client.get("/session").json() == {"role": "admin", "expires_in": int(SESSION_S), "read_only": False}


def test_session_counts_as_a_key_of_its_role(site: PagedSite) -> None:
    error_of(site.client.get("/v1/models"), 401)
    site.sign_in("user")
    assert site.client.get("/v1/models").status_code == 200
    assert site.client.post("/x/do", headers=OWN).json() == {"role": "user"}
    error_of(site.client.get("/x/admin"), 403)
    error_of(site.client.post("/session/links?page=/chat", headers=OWN), 403)
    site.sign_in("admin")
    assert site.client.get("/x/admin").json() == "seen"
    assert site.client.post("/session/links?page=/chat", headers=OWN).json()["role"] == "user"


def test_key_goes_before_a_session(site: PagedSite) -> None:
    site.sign_in("admin")
    error_of(site.client.get("/x/admin", headers={"Authorization": "Bearer k"}), 403)
    error_of(site.client.get("/x/admin", headers={"Authorization": "Bearer wrong"}), 401)


def test_stream_of_events_has_the_session(site: PagedSite) -> None:
    site.sign_in("user")
    asked = {"Accept": "text/event-stream", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert site.client.get("/v1/models", headers=asked).status_code == 200


def test_link_works_once(site: PagedSite) -> None:
    link = site.sign_in()
    other = TestClient(site.app)
    error_of(other.get(link, follow_redirects=False), 403)
    error_of(other.get("/v1/models"), 401)
    assert site.client.get("/v1/models").status_code == 200


def test_whatever_only_looks_at_a_link_leaves_it(site: PagedSite) -> None:
    link = site.make_link().json()["url"]
    assert site.client.head(link).status_code == 204
    assert site.client.get(link, follow_redirects=False).status_code == 303


def test_link_and_session_expire(site: PagedSite) -> None:
    link = site.make_link().json()["url"]
    site.clock.now += LINK_S
    error_of(site.client.get(link, follow_redirects=False), 403)
    site.sign_in()
    site.clock.now += SESSION_S
    error_of(site.client.get("/v1/models"), 401)
    assert site.client.get("/session").json() == {"role": None, "expires_in": 0, "read_only": False}


def test_closed_session_is_over_also_for_who_has_copied_its_cookie(site: PagedSite) -> None:
    site.sign_in()
    copied = dict(site.client.cookies)
    error_of(site.client.delete("/session", headers=NEIGHBOUR), 403)
    closed = site.client.delete("/session", headers=OWN)
    assert closed.status_code == 204
    assert "Max-Age=0" in closed.headers["set-cookie"]
    error_of(TestClient(site.app, cookies=copied).get("/v1/models"), 401)


def test_new_session_has_a_new_cookie_and_ends_that_of_before(site: PagedSite) -> None:
    """A cookie that an attacker has planted does not become that of the session."""
    site.client.cookies.set("parallax-80", "planted-by-someone-else")
    site.sign_in()
    first = [each for each in site.client.cookies.jar if each.value and "planted" not in each.value][-1].value
    site.sign_in()
    error_of(TestClient(site.app, cookies={"parallax-80": str(first)}).get("/v1/models"), 401)
    planted = TestClient(site.app, cookies={"parallax-80": "planted-by-someone-else"})
    error_of(planted.get("/v1/models"), 401)


@pytest.mark.parametrize(
    "headers",
    [
        NEIGHBOUR,
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {},
    ],
)
def test_page_of_another_origin_has_no_session(tmp_path: Path, headers: dict[str, str]) -> None:
    """Whichever origins CORS allows, and although browsers send the cookie to all ports of a host."""
    with PagedSite(tmp_path, cors_origins=("*",)) as site:
        site.sign_in("admin")
        error_of(site.client.post("/x/do", headers=headers), 401)
        if headers.get("Sec-Fetch-Site") in {"same-site", "cross-site"}:
            error_of(site.client.get("/x/admin", headers=headers), 401)


def test_name_that_is_not_the_servers_opens_nothing(tmp_path: Path) -> None:
    with PagedSite(tmp_path, hosts=("testserver",)) as site:
        link = site.make_link().json()["url"].removeprefix("http://testserver")
        error_of(site.client.get(link, headers={"Host": "evil.example"}, follow_redirects=False), 403)
        assert site.client.get(link, follow_redirects=False).status_code == 303
        foreign = {"Host": "evil.example", "Origin": "http://evil.example"}
        error_of(site.client.post("/x/do", headers=foreign), 403)


def test_session_counts_at_the_name_where_it_was_opened(site: PagedSite) -> None:
    site.sign_in()
    named = {"Host": "evil.example", "Origin": "http://evil.example"}
    error_of(site.client.post("/x/do", headers=named), 401)
    error_of(site.client.get("/v1/models", headers=named), 401)
    assert site.client.post("/x/do", headers=OWN).status_code == 200


def test_address_that_guesses_links_has_to_wait(site: PagedSite) -> None:
    link = site.make_link().json()["url"]
    for _ in range(MOST_WRONG):
        error_of(site.client.get("/session?code=guess", follow_redirects=False), 403)
    limited = site.client.get(link, follow_redirects=False)
    error_of(limited, 429)
    assert limited.headers["retry-after"] == str(int(WRONG_S))
    site.clock.now += WRONG_S
    assert site.client.get(link, follow_redirects=False).status_code == 303


def test_address_that_guesses_keys_has_to_wait_to_sign_in(site: PagedSite) -> None:
    client = TestClient(SignInLimit(site.app, WrongTries(site.clock)), raise_server_exceptions=False)
    wrong, right = ({"Authorization": f"Bearer {key}", **OWN} for key in ("guess", "k"))
    for _ in range(MOST_WRONG):
        error_of(client.post("/session", headers=wrong), 401)
        assert client.get("/v1/models", headers=wrong).status_code == 401  # which counts for nothing
    limited = client.post("/session", headers=right)
    error_of(limited, 429)
    assert limited.headers["retry-after"] == str(int(WRONG_S))
    assert client.get("/v1/models", headers=right).status_code == 200
    site.clock.now += WRONG_S
    assert client.post("/session", headers=right).status_code == 200


def test_link_leads_to_pages_of_this_server_alone(site: PagedSite) -> None:
    for page in ("//evil.example", "https://evil.example", "/v1"):
        error_of(site.client.post("/session/links", params={"page": page}, headers=ADMIN), 400)
    error_of(site.client.post("/session/links?page=/chat&role=root", headers=ADMIN), 400)
    error_of(site.client.post("/session/links?page=/chat", headers={"Authorization": "Bearer k"}), 403)


def test_cookie_is_secure_where_the_connection_is(tmp_path: Path) -> None:
    with PagedSite(tmp_path) as site:
        client = TestClient(site.app, base_url="https://testserver")
        link = site.make_link().json()["url"].removeprefix("http://testserver")
        cookie = client.get(link, follow_redirects=False).headers["set-cookie"]
        assert cookie.startswith("__Host-parallax-")
        assert cookie.endswith("; Secure")
        assert client.get("/v1/models").status_code == 200
        assert client.post("/x/do", headers={"Origin": "https://testserver"}).status_code == 200


def test_cookie_of_a_server_on_another_port_is_another(site: PagedSite) -> None:
    site.sign_in()
    [(name, value)] = site.client.cookies.items()
    other = TestClient(site.app, base_url="http://testserver:8001", cookies={name: value})
    error_of(other.get("/v1/models"), 401)


def test_sessions_are_clients_of_their_own(tmp_path: Path) -> None:
    with PagedSite(tmp_path, max_per_minute=1) as site:
        site.sign_in()
        assert site.client.post("/x/do", headers=OWN).status_code == 200
        error_of(site.client.post("/x/do", headers=OWN), 429)
        error_of(site.client.post("/v1/chat/completions", headers={"Authorization": "Bearer k"}, content=b"{"), 400)


def test_operator_is_the_same_client_after_a_restart_and_nobody_else_is() -> None:
    found = []
    for _ in range(2):
        sessions = Sessions(Clock())
        (note,) = WebPages(sessions).list_notes("", ["/chat"], needs_key=True)
        for link in (note, sessions.invite("admin", "/chat")):
            opened = sessions.redeem(link.rpartition("code=")[2], "")
            assert opened is not None
            client = sessions.authenticate(make_scope(opened[0]))
            assert client is not None
            found.append(client.id)
    assert found[0] == found[2] == "operator"
    assert len(set(found)) == 3


def test_browsers_of_a_key_are_one_client_and_of_its_role(tmp_path: Path) -> None:
    with PagedSite(tmp_path, max_per_minute=2) as site:
        other = TestClient(site.app)
        for client in (site.client, other):
            opened = client.post("/session", headers={**OWN, "Authorization": "Bearer k"})
            assert (opened.status_code, opened.json()["role"]) == (200, "user")
            assert COOKIE.fullmatch(opened.headers["set-cookie"])
        assert [each.post("/x/do", headers=OWN).status_code for each in (site.client, other)] == [200, 200]
        error_of(other.post("/x/do", headers=OWN), 429)
        error_of(other.get("/x/admin"), 403)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"X-Api-Key": "k", "Origin": "https://evil.example"}, 403),
        ({"X-Api-Key": "k", "Origin": "null"}, 403),
    ],
)
def test_wrong_key_or_page_opens_no_session(site: PagedSite, headers: dict[str, str], status: int) -> None:
    refused = site.client.post("/session", headers={**OWN, **headers})
    error_of(refused, status)
    assert "set-cookie" not in refused.headers


def test_session_ends_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "LOOK_S", 0.0)
    monkeypatch.setattr(api_keys, "SETTLE_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("boss admin\nk user\n")
    file.chmod(0o600)
    with PagedSite(tmp_path, ApiKeys(file=KeyFile(file))) as site:
        sessions = [site.client, TestClient(site.app), TestClient(site.app), TestClient(site.app)]
        site.sign_in("admin")
        link = site.client.post("/session/links?page=/chat", headers=OWN).json()["url"]  # by a session of the same key
        sessions[1].get(link.removeprefix("http://testserver"))
        sessions[2].post("/session", headers={**OWN, "X-Api-Key": "k"})
        [line] = site.list_notes("http://testserver/v1")
        sessions[3].get(line.partition("minutes: http://testserver")[2])
        assert [each.get("/v1/models").status_code for each in sessions] == [200] * 4
        for text, statuses in (("boss user\nk user\n", [401, 200, 200, 200]), ("k user\n", [401, 401, 200, 200])):
            file.write_text(text)
            assert [each.get("/v1/models").status_code for each in sessions] == statuses


def test_server_without_pages_has_no_sessions() -> None:
    with Site(ServerOptions(keys=ApiKeys({"boss": "admin"}))) as site:
        _, list_notes = extend(site)
        error_of(site.client.get("/session", headers=ADMIN), 404)
        assert list(list_notes("http://testserver/v1")) == []


def test_server_without_keys_names_its_pages(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("a page")
    with Site(ServerOptions()) as site:
        _, list_notes = extend(site, one=lambda server: server.add_page("/chat", tmp_path))
        assert list(list_notes("http://testserver/v1")) == ["page http://testserver/chat/"]


def test_links_and_sessions_are_kept_up_to_a_number() -> None:
    sessions = Sessions(Clock())
    links = [sessions.invite("user", "/chat").partition("code=")[2] for _ in range(MOST_LINKS + 1)]
    assert sessions.redeem(links[0], "") is None
    assert sessions.redeem(links[1], "") is not None
    tokens = [open_one(sessions) for _ in range(MOST_SESSIONS + 1)]
    found = [sessions.find(make_scope(token)) is not None for token in (tokens[0], tokens[1], tokens[-1])]
    assert found == [False, True, True]


def open_one(sessions: Sessions, role: RouteRole = "user", host: str = "") -> str:
    """Open a session, and return its token."""
    opened = sessions.redeem(sessions.invite(role, "/chat").partition("code=")[2], "", host)
    assert opened is not None
    return opened[0]


def make_scope(token: str) -> dict[str, Any]:
    """Return a request with the cookie of a session."""
    cookie = (b"cookie", f"other=1; parallax-80={token}".encode())
    return {"type": "http", "method": "GET", "scheme": "http", "server": ("here", 80), "headers": [cookie]}


class TestSessions(AuthenticatorConformance):
    """Sessions are a way to know clients."""

    def make(self) -> Sessions:
        return Sessions(Clock())

    def list_known(self, authenticator: Authenticator) -> list[tuple[dict[str, str], RouteRole]]:
        assert isinstance(authenticator, Sessions)
        roles: tuple[RouteRole, ...] = ("user", "admin", "user")
        return [({"cookie": f"parallax-80={open_one(authenticator, role, 'toy')}"}, role) for role in roles]

    def list_unknown(self) -> list[dict[str, str]]:
        token = open_one(Sessions(Clock()), host="toy")
        return [{"cookie": f"parallax-80={token}"}, {"cookie": "parallax-80=a"}, {"authorization": f"Bearer {token}"}]
