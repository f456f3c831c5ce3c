"""Each route states the role that it needs; a route of a plugin that states none is no user's unless it only reads."""

from __future__ import annotations

import pytest
from fastapi import APIRouter

from parallax_core.contracts.surface import RouteRole, needs_role
from parallax_core.server.route_roles import RouteRoles


async def answer() -> str:
    return "yes"


def make_router() -> APIRouter:
    router = APIRouter()
    router.add_api_route("/both", answer, methods=["GET"])
    router.add_api_route("/both", answer, methods=["POST"])
    router.add_api_route("/mixed", answer, methods=["GET", "POST"])
    router.add_api_route("/items/{name}", answer, methods=["DELETE"])
    for role in ("user", "metrics", "admin", None):

        @needs_role(role)
        async def stated() -> str:
            return "yes"

        router.add_api_route(f"/{role}", stated, methods=["POST"])
    return router


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/both", "user"),
        ("HEAD", "/both", "admin"),
        ("POST", "/both", "admin"),
        ("PUT", "/both", "admin"),
        ("GET", "/mixed", "admin"),
        ("DELETE", "/items/a", "admin"),
        ("GET", "/items/a", "admin"),
        ("POST", "/user", "user"),
        ("POST", "/metrics", "metrics"),
        ("POST", "/admin", "admin"),
        ("POST", "/None", None),
        ("GET", "/nothing", "user"),
        ("POST", "/items/a/b", "user"),
    ],
)
def test_route_of_a_plugin_that_states_no_role_is_an_administrators(
    method: str, path: str, role: RouteRole | None
) -> None:
    roles = RouteRoles()
    roles.add_plugins(make_router())
    assert roles.find(path, method) == role


def test_own_routes_that_state_no_role_are_the_users() -> None:
    roles = RouteRoles()
    roles.add_own(make_router())
    assert [roles.find(path, "POST") for path in ("/both", "/mixed", "/admin", "/None")] == [
        "user",
        "user",
        "admin",
        None,
    ]


def test_guests_are_shown_the_routes_that_say_so() -> None:
    router, roles = make_router(), RouteRoles()

    @router.get("/shown")
    @needs_role("admin", shows_guests=True)
    async def shown() -> str:
        return "yes"

    roles.add_plugins(router)
    assert [path for path in ("/shown", "/shown/x", "/admin", "/both", "/none") if roles.shows_guests(path)] == [
        "/shown"
    ]
