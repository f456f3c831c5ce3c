"""The kit for servers of pages passes that of parallax-web, and catches a fault of each sort."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import FileResponse

from parallax_core.api import KnownClient, PageServer, needs_role
from parallax_core.testing.page_server import PageServerConformance
from parallax_web import front_page, page_files, sessions
from parallax_web.page_server import WebPages
from tests.conformance.harness import find_failures, run_test

AT_PATH = "test_page_is_at_its_path"
STRICT = "test_files_have_types_and_a_strict_policy"
NOTHING_ELSE = "test_nothing_else_is_served"
REFUSED = "test_page_that_cannot_be_served_is_refused"
LEADS = "test_address_of_the_server_leads_to_the_page"
TOLD = "test_operator_is_told_the_address"
ONCE = "test_link_opens_a_session_once"
OWN = "test_session_counts_for_pages_of_this_server_alone"


class Kit(PageServerConformance):
    def make(self) -> PageServer:
        return WebPages()


class PlainFiles(WebPages):
    """Sends whatever the file system has."""

    def open_page(self, path: str, folder: Path) -> APIRouter:
        router = APIRouter()

        @router.get(f"{path}/{{name:path}}")
        @needs_role(None)
        async def show(name: str) -> Response:
            return FileResponse(folder / (name or "index.html"))

        return router


def change_answers(router: APIRouter, change: Callable[[Response], None]) -> APIRouter:
    """Return a router with the same routes, whose answers are changed."""
    changed = APIRouter()
    for route in router.routes:
        assert isinstance(route, APIRoute)
        changed.add_api_route(route.path, change_answer(route.endpoint, change), methods=sorted(route.methods or ()))
    return changed


def change_answer(answer: Callable[..., Any], change: Callable[[Response], None]) -> Callable[..., Any]:
    @functools.wraps(answer)
    async def changed(**given: Any) -> Response:
        response: Response = await answer(**given)
        change(response)
        return response

    return changed


class Headers(WebPages):
    """Sends another header with files."""

    name = value = ""

    def open_page(self, path: str, folder: Path) -> APIRouter:
        def change(response: Response) -> None:
            response.headers[self.name] = self.value

        return change_answers(super().open_page(path, folder), change)


class LoosePolicy(Headers):
    name, value = "content-security-policy", "default-src 'self' 'unsafe-inline'"


class PolicyOfOthers(Headers):
    name, value = "content-security-policy", "default-src 'self'; script-src https://cdn.example"


class NoPolicy(Headers):
    name, value = "content-security-policy", ""


class GuessedTypes(Headers):
    name, value = "x-content-type-options", ""


class PlainTypes(Headers):
    name, value = "content-type", "text/plain"


class NoRedirect(WebPages):
    def open_page(self, path: str, folder: Path) -> APIRouter:
        router = super().open_page(path, folder)
        router.routes = router.routes[1:]
        return router


class TakesAnyPath(WebPages):
    def open_page(self, path: str, folder: Path) -> APIRouter:
        return page_files.make_router("/kit", folder)


class AbsoluteFrontPage(WebPages):
    def open_routes(self, pages: Sequence[str]) -> Iterator[APIRouter]:
        router = APIRouter()

        @router.get("/")
        @needs_role(None)
        async def show() -> Response:
            return Response(status_code=307, headers={"location": f"{pages[0]}/"})

        yield router


class PlainFrontPage(WebPages):
    def open_routes(self, pages: Sequence[str]) -> Iterator[APIRouter]:
        yield front_page.make_router(())


class SaysNothing(WebPages):
    def list_notes(self, url: str, pages: Sequence[str], *, needs_key: bool) -> Iterator[str]:
        yield from ()


class Reusable(sessions.Sessions):
    def redeem(self, code: str, address: str, host: str = "") -> tuple[str, sessions.Pass] | None:
        kept = dict(self._links)
        found = super().redeem(code, address, host)
        self._links.update(kept)
        return found


class SpentByLooking(WebPages):
    def open_routes(self, pages: Sequence[str]) -> Iterator[APIRouter]:
        router = APIRouter()

        @router.head("/session")
        @needs_role(None)
        async def look(http: Request, code: str = "") -> Response:
            self._sessions.redeem(code, "")
            return Response()

        yield router
        yield from super().open_routes(pages)


class Anywhere(sessions.Sessions):
    """Has sessions for requests of all pages."""

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        own = [each for each in scope["headers"] if each[0] not in {b"origin", b"sec-fetch-site"}]
        given = [*own, (b"origin", b"http://toy")]
        return super().authenticate({**scope, "headers": given})


class SameSite(sessions.Sessions):
    """Has sessions for requests of other ports."""

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        changed = [(name, b"http://toy" if value == b"http://toy:3000" else value) for name, value in scope["headers"]]
        return super().authenticate({**scope, "headers": changed})


class Forgetful(sessions.Sessions):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        return None


class ScriptsSeeCookies(WebPages):
    def open_routes(self, pages: Sequence[str]) -> Iterator[APIRouter]:
        def change(response: Response) -> None:
            if "set-cookie" in response.headers:
                response.headers["set-cookie"] = response.headers["set-cookie"].replace("HttpOnly; ", "")

        return (change_answers(router, change) for router in super().open_routes(pages))


def test_server_of_pages_passes() -> None:
    assert find_failures(Kit) == {}


def keep(kind: type[sessions.Sessions]) -> Callable[[], WebPages]:
    """Return what makes a server of pages with such sessions."""
    return lambda: WebPages(kind())


@pytest.mark.parametrize(
    ("make", "test"),
    [
        (PlainFiles, AT_PATH),
        (PlainFiles, STRICT),
        (PlainFiles, NOTHING_ELSE),
        (PlainFiles, REFUSED),
        (LoosePolicy, STRICT),
        (PolicyOfOthers, STRICT),
        (NoPolicy, STRICT),
        (GuessedTypes, STRICT),
        (PlainTypes, STRICT),
        (NoRedirect, AT_PATH),
        (TakesAnyPath, REFUSED),
        (AbsoluteFrontPage, LEADS),
        (PlainFrontPage, LEADS),
        (SaysNothing, TOLD),
        (SaysNothing, ONCE),
        (keep(Reusable), ONCE),
        (SpentByLooking, ONCE),
        (ScriptsSeeCookies, ONCE),
        (keep(Anywhere), OWN),
        (keep(SameSite), OWN),
        (keep(Forgetful), OWN),
    ],
)
def test_fault_is_caught(make: Callable[[], WebPages], test: str) -> None:
    class Faulty(Kit):
        def make(self) -> PageServer:
            return make()

    assert run_test(Faulty, test)
