"""The kit for authenticators, which know clients that send no API key.

Subclass it in a test module under a name that begins with ``Test``, and give `make`, `list_known` and `list_unknown`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import get_args

from parallax_core.contracts.surface import Authenticator, KnownClient, RouteRole
from parallax_core.testing.asgi import make_scope
from parallax_core.testing.promise import broken

KNOWN = "Return the client that sent a request"
UNKNOWN = "None: it is unknown"
ROLE = "Its rights, as those of an API key"
KEY = "The SHA-256 of the API key by which it is known"
APART = "Tells it apart from others that the same authenticator knows"
HEAD = "the head of the request, as ASGI has it"
DIGEST_BYTES = 32
ODD = ("", " ", "=", ";;=;", "\xff\xfe", "a" * 10_000, "Bearer", "Basic !", "a=b; a=b; a=")


class AuthenticatorConformance:
    """Tests for an `Authenticator`, by the headers of requests to ``http://toy``."""

    def make(self) -> Authenticator:
        """Return a new authenticator."""
        raise NotImplementedError

    def list_known(self, authenticator: Authenticator) -> Sequence[tuple[Mapping[str, str], RouteRole]]:
        """Return the headers by which it knows at least two clients, with the role of each."""
        raise NotImplementedError

    def list_unknown(self) -> Sequence[Mapping[str, str]]:
        """Return headers that look like those of a client, and are not: of an old session, or a forged token."""
        raise NotImplementedError

    def test_client_has_its_role(self) -> None:
        """Each is known, and with the role that it has."""
        authenticator = self.make()
        for headers, role in self.list_known(authenticator):
            found = authenticator.authenticate(make_scope("GET", "/v1/models", headers))
            assert isinstance(found, KnownClient), broken(f"it answers {found!r} for a client that it knows", KNOWN)
            assert found.role == role, broken(f"it gives the role {found.role!r}, not {role!r}", ROLE)
            assert found.role in get_args(RouteRole), broken(f"{found.role!r} is no role", ROLE)
            is_digest = found.key is None or len(found.key) == DIGEST_BYTES
            assert is_digest, broken("the key by which it knows a client is no SHA-256", KEY)

    def test_clients_are_told_apart(self) -> None:
        """Two requests of a client have the same id, and those of two clients have different ones."""
        authenticator = self.make()
        known = [headers for headers, _ in self.list_known(authenticator)]
        assert len(known) >= 2, "list_known gives fewer than two clients"  # noqa: PLR2004 -- to be told apart
        first, again = ([self._identify(authenticator, each) for each in known] for _ in range(2))
        assert first == again, broken("a client has another id with each request", APART)
        assert len(set(first)) == len(known), broken(f"several clients have the same id: {first}", APART)

    def test_stranger_is_unknown(self) -> None:
        """Whoever sends nothing, or what is no longer or was never valid."""
        authenticator = self.make()
        self.list_known(authenticator)
        for headers in ({}, *self.list_unknown()):
            found = authenticator.authenticate(make_scope("GET", "/v1/models", headers))
            assert found is None, broken(f"{dict(headers)} is taken for {found}", UNKNOWN)

    def test_odd_requests_are_of_strangers(self) -> None:
        """Nothing that a client may send makes it raise."""
        authenticator = self.make()
        names = {name for headers, _ in self.list_known(authenticator) for name in headers}
        for name in ("cookie", "authorization", *sorted(names)):
            for value in ODD:
                scope = {**make_scope("PUT", "/", {name: value}), "client": None, "server": None}
                try:
                    found = authenticator.authenticate(scope)
                except Exception as error:
                    fault = f"{name}: {value[:20]!r} makes it raise {type(error).__name__}: {error}"
                    raise AssertionError(broken(fault, UNKNOWN)) from error
                assert found is None, broken(f"{name}: {value[:20]!r} is taken for {found}", UNKNOWN)

    def test_request_stays_as_it_is(self) -> None:
        """What comes after sees the request that the client sent."""
        authenticator = self.make()
        for headers, _ in self.list_known(authenticator):
            scope = make_scope("GET", "/v1/models", headers)
            before = copy.deepcopy(scope)
            authenticator.authenticate(scope)
            assert scope == before, broken("it changes the request", HEAD)

    def _identify(self, authenticator: Authenticator, headers: Mapping[str, str]) -> str:
        found = authenticator.authenticate(make_scope("GET", "/v1/models", headers))
        assert found is not None, broken("it does not know a client that it should", KNOWN)
        return found.id
