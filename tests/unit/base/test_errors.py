from __future__ import annotations

import inspect

import pytest

from parallax_core.base import errors
from parallax_core.base.errors import InvalidRequest, OutOfPages, ParallaxError, Unavailable

WORDED = [OutOfPages]
"""Those that word their message themselves."""
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WORDED])
def test_every_error_is_a_parallax_error_with_a_message_and_a_hint(kind: type[ParallaxError]) -> None:
    error = kind("there is no 'x'", hint="write 'y'")
    assert isinstance(error, ParallaxError)
    assert (str(error), error.message, error.hint) == ("there is no 'x'", "there is no 'x'", "write 'y'")
    assert kind("there is no 'x'").hint == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_when_it_is_raised(kind: type[ParallaxError]) -> None:
    assert kind.__doc__
    assert kind.__doc__ is not Exception.__doc__


def test_no_error_hides_an_exception_of_python() -> None:
    # What catches ParallaxError shows it without a traceback, so bugs must not be among them.
    assert ParallaxError.__mro__ == (ParallaxError, Exception, BaseException, object)


def test_out_of_pages_says_how_many() -> None:
    error = OutOfPages(3, 1)
    assert isinstance(error, ParallaxError)
    assert (error.needed, error.free, str(error)) == (3, 1, "3 pages are needed, but 1 are free")


def test_an_invalid_request_names_the_field() -> None:
    assert InvalidRequest("top_p is 2", "top_p").param == "top_p"
    assert InvalidRequest("the body is empty").param is None


def test_unavailable_says_when_to_come_back() -> None:
    assert Unavailable("too many requests wait").retry_after_s == 1
    assert Unavailable("too many requests wait", retry_after_s=5).retry_after_s == 5
