"""The kit for servers of pages: files, the policy they are sent with, and the sessions of browsers.

Subclass it in a test module under a name that begins with ``Test``, and give `make`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

from parallax_core.contracts.page import PageServer
from parallax_core.hookspecs import hookimpl
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import extend_app
from parallax_core.testing.asgi import AsgiAnswer, send_request
from parallax_core.testing.promise import broken
from parallax_core.testing.surface import make_bare_app

PATH = "/kit"
ASKED = "/v1/asked"
"""A path without a route, which is refused without a key before it is sought."""
FOLDER = "has ``index.html``; what begins with a dot is not served"
LEADS = "Who opens the address of the server in a browser is led to the first page"
ALLOWED = "allows scripts, styles, images, fonts and requests of this server alone, and nothing inline"
NOTES = "Yield the lines that say where the pages are, for the operator who starts the server"
ONCE = "the operator gets a link that opens a session of the browser once"
COUNTS = "whose cookie counts as a key of its role for what this server's own pages send"
REFUSES = "if the path is no single segment, or the folder has no ``index.html``"
OWN_SOURCES = {"'none'", "'self'", "data:"}
URL = "http://toy"
OK, UNAUTHORIZED, MISSING = 200, 401, 404
OWN = {"origin": URL, "sec-fetch-site": "same-origin"}
OTHERS: tuple[Mapping[str, str], ...] = (
    {"origin": "http://toy:3000", "sec-fetch-site": "same-site"},
    {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site"},
    {"origin": "null"},
    {},
)
"""What browsers send with a request of another page that changes something; without ``Origin`` in old ones."""
FILES = {
    "page/index.html": "<!doctype html><script src=app.js></script>",
    "page/app.js": "fetch('/v1/models')",
    "page/.env": "secret",
    "outside.txt": "secret",
}
HIDDEN = (".env", "%2e%2e/outside.txt", "..%2foutside.txt", "link.txt", "nothing.js")


class PageServerConformance:
    """Tests for a `PageServer`, by what a server with one page sends to a browser."""

    def make(self) -> PageServer:
        """Return a new server of pages, as `parallax_serve_pages` does."""
        raise NotImplementedError

    def serve(self, folder: Path, *, needs_key: bool = False) -> tuple[Any, list[str]]:
        """Return a server with a page, and the lines for its operator."""
        for name, text in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        (folder / "page/link.txt").symlink_to(folder / "outside.txt")
        app, models = make_bare_app(ServerOptions(keys=ApiKeys({"k": "user"} if needs_key else {})))
        record = PluginRecord(name="kit", distribution="kit", version="0", module="kit", state="loaded")
        extend = hookimpl(lambda server: server.add_page(PATH, folder / "page"))
        made = self.make()
        hooks = SimpleNamespace(parallax_serve_pages=hookimpl(lambda: made), parallax_extend_server=extend)
        plugins = PluginHost([(record, hooks)])
        list_notes = extend_app(app, models, plugins)
        reason = plugins.records[0].reason
        assert not reason, broken(f"a page cannot be served: {reason}", FOLDER)
        return app, [each for each in list_notes(f"{URL}/v1") if PATH in each]

    def test_page_is_at_its_path(self, tmp_path: Path) -> None:
        """With a slash, since its own links are relative; without one, the browser is led there."""
        app, _ = self.serve(tmp_path)
        page, moved = ask(app, f"{PATH}/"), ask(app, PATH)
        assert page.status == OK, broken(f"{PATH}/ is answered with {page.status}", FOLDER)
        assert page.body.decode() == FILES["page/index.html"], broken(f"{PATH}/ is not index.html", FOLDER)
        to = urljoin(f"{URL}{PATH}", moved.headers.get("location", ""))
        assert to == f"{URL}{PATH}/", broken(f"{PATH} leads to {to}", FOLDER)

    def test_files_have_types_and_a_strict_policy(self, tmp_path: Path) -> None:
        """Browsers run scripts of known types alone, and load nothing of other servers."""
        app, _ = self.serve(tmp_path)
        for name, kind in (("", "text/html"), ("app.js", "text/javascript")):
            answer = ask(app, f"{PATH}/{name}")
            assert answer.kind.startswith(kind), broken(f"{name or PATH} has the type {answer.kind!r}", ALLOWED)
            assert answer.headers.get("x-content-type-options") == "nosniff", broken("its type may be guessed", ALLOWED)
            policy = answer.headers.get("content-security-policy", "")
            assert "default-src" in policy, broken(f"{name or PATH} has the policy {policy!r}", ALLOWED)
            loose = {source for each in policy.split(";") for source in each.split()[1:]} - OWN_SOURCES
            assert not loose, broken(f"the policy of {name or PATH} allows {sorted(loose)}", ALLOWED)

    def test_nothing_else_is_served(self, tmp_path: Path) -> None:
        """Neither files that begin with a dot, nor those outside of the folder."""
        app, _ = self.serve(tmp_path)
        for name in HIDDEN:
            status = ask(app, f"{PATH}/{name}").status
            assert status == MISSING, broken(f"{name} is answered with {status}", FOLDER)

    def test_page_that_cannot_be_served_is_refused(self, tmp_path: Path) -> None:
        """At once, so that the plugin is named."""
        self.serve(tmp_path)
        for path, folder in (("/", "page"), ("/a/b", "page"), ("kit", "page"), ("/kit", ".")):
            try:
                self.make().open_page(path, tmp_path / folder)
            except ValueError:
                continue
            raise AssertionError(broken(f"a page at {path!r} of {folder!r} is taken", REFUSES))

    def test_address_of_the_server_leads_to_the_page(self, tmp_path: Path) -> None:
        """Below whatever prefix a proxy has put it."""
        to = ask(self.serve(tmp_path)[0], "/").headers.get("location", "")
        assert urljoin(f"{URL}/below/", to) == f"{URL}/below{PATH}/", broken(f"/ leads to {to!r}", LEADS)

    def test_operator_is_told_the_address(self, tmp_path: Path) -> None:
        """The address of the page itself, where no key is needed."""
        notes = self.serve(tmp_path)[1]
        assert any(f"{URL}{PATH}/" in each.split() for each in notes), broken(f"the lines are {notes}", NOTES)

    def test_link_opens_a_session_once(self, tmp_path: Path) -> None:
        """Its cookie is kept from scripts and other sites, and whoever looks only leaves the link as it is."""
        app, link, _ = self._sign_in(tmp_path)
        again = ask(app, link)
        assert "set-cookie" not in again.headers, broken("it opens a session each time", ONCE)

    def test_session_counts_for_pages_of_this_server_alone(self, tmp_path: Path) -> None:
        """A cookie goes along with requests of pages of others, too, where they are of the same host."""
        app, _, cookie = self._sign_in(tmp_path)
        for method in ("GET", "PUT"):
            status = ask(app, ASKED, {**cookie, **OWN}, method).status
            assert status != UNAUTHORIZED, broken(f"a {method} of the page is refused", COUNTS)
        for headers in OTHERS:
            status = ask(app, ASKED, {**cookie, **headers}, "PUT").status
            assert status == UNAUTHORIZED, broken(f"a PUT with {headers} is answered with {status}", COUNTS)
        status = ask(app, ASKED, {**cookie, "sec-fetch-site": "cross-site"}).status
        assert status == UNAUTHORIZED, broken("a GET of another site has the session", COUNTS)

    def _sign_in(self, folder: Path) -> tuple[Any, str, Mapping[str, str]]:
        """Return a server with keys, the used link of its page, and the cookie as a header."""
        app, notes = self.serve(folder, needs_key=True)
        found = re.search(rf"{URL}(\S+)", " ".join(notes))
        assert found, broken(f"the lines {notes} have no link", ONCE)
        ask(app, found[1], method="HEAD")
        name, _, flags = ask(app, found[1]).headers.get("set-cookie", "").partition(";")
        kept = {each.strip().lower() for each in flags.split(";")}
        assert {"httponly", "samesite=strict"} <= kept, broken(f"the flags of the cookie are {sorted(kept)}", ONCE)
        return app, found[1], {"cookie": name}


def ask(app: Any, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> AsgiAnswer:  # noqa: ANN401
    """Return the answer of a server to a browser."""
    return asyncio.run(send_request(app, method, path, headers=headers))
