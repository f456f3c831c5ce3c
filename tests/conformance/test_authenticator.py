"""The kit for authenticators passes a good one, and catches a fault of each sort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Authenticator, KnownClient, RouteRole
from parallax_core.testing.authenticator import AuthenticatorConformance
from tests.conformance.harness import find_failures, run_test

ROLE = "test_client_has_its_role"
APART = "test_clients_are_told_apart"
STRANGER = "test_stranger_is_unknown"
ODD = "test_odd_requests_are_of_strangers"
STAYS = "test_request_stays_as_it_is"


class Names:
    """Knows the users that a proxy in front of the server names, as single sign-on does."""

    roles: Mapping[str, RouteRole] = {"ann": "admin", "bob": "user"}

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        name = self.read_name(scope)
        role = self.roles.get(name)
        return None if role is None else KnownClient(name, role)

    def read_name(self, scope: Mapping[str, Any]) -> str:
        return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-user"), "")


class WelcomesAll(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        return super().authenticate(scope) or KnownClient("guest", "user")


class ForgetsToLookUp(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        name = self.read_name(scope)
        return KnownClient(name, self.roles.get(name, "user")) if name else None


class GivesAllOneId(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        found = super().authenticate(scope)
        return found and KnownClient("user", found.role)


class GivesNewIds(Names):
    count = 0

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        self.count += 1
        found = super().authenticate(scope)
        return found and KnownClient(f"{found.id}{self.count}", found.role)


class RaisesRoles(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        found = super().authenticate(scope)
        return found and KnownClient(found.id, "admin")


class GivesTheKeyAway(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        found = super().authenticate(scope)
        return found and replace(found, key=b"sk-1")


class MakesUpRoles(Names):
    roles: Mapping[str, Any] = {"ann": "admin", "bob": "root"}


class DecodesStrictly(Names):
    def read_name(self, scope: Mapping[str, Any]) -> str:
        return next((value.decode("ascii") for name, value in scope["headers"] if name == b"x-user"), "")


class ReadsTheClient(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        return super().authenticate(scope) if scope["client"][0] else None


class TakesTheHeader(Names):
    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        found = super().authenticate(scope)
        scope["headers"][:] = [each for each in scope["headers"] if each[0] != b"x-user"]
        return found


class KnowsNoOne(Names):
    roles: Mapping[str, RouteRole] = {}


def make_kit(kind: type[Names]) -> type[AuthenticatorConformance]:
    class Kit(AuthenticatorConformance):
        def make(self) -> Authenticator:
            return kind()

        def list_known(self, authenticator: Authenticator) -> list[tuple[dict[str, str], RouteRole]]:
            known: dict[str, Any] = {**Names.roles, **kind.roles}
            return [({"x-user": name}, role) for name, role in known.items()]

        def list_unknown(self) -> list[dict[str, str]]:
            return [{"x-user": "eve"}, {"x-user": ""}]

    return Kit


def test_good_authenticator_passes() -> None:
    assert find_failures(make_kit(Names)) == {}


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (WelcomesAll, STRANGER),
        (WelcomesAll, ODD),
        (ForgetsToLookUp, STRANGER),
        (GivesAllOneId, APART),
        (GivesNewIds, APART),
        (RaisesRoles, ROLE),
        (MakesUpRoles, ROLE),
        (KnowsNoOne, ROLE),
        (GivesTheKeyAway, ROLE),
        (DecodesStrictly, ODD),
        (ReadsTheClient, ODD),
        (TakesTheHeader, STAYS),
    ],
)
def test_fault_is_caught(kind: type[Names], test: str) -> None:
    assert "The contract says" in run_test(make_kit(kind), test)
