"""Failure messages of the kits: the fault, and the sentence of the contract that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from parallax_core.base.errors import ParallaxError

E = TypeVar("E", bound=BaseException)


def broken(fault: str, promise: str) -> str:
    """Return the message of a failed test; ``promise`` is a sentence of the contract, word for word."""
    return f'{fault}. The contract says: "{promise}"'


@dataclass(slots=True)
class Caught(Generic[E]):
    """The error raised in the block, afterwards."""

    error: E | None = None


@contextmanager
def expect(kind: type[E], what: str, promise: str) -> Iterator[Caught[E]]:
    """Fail unless the block raises ``kind``; ``what`` names its action, such as ``sending to a lost peer``.

    A `ParallaxError` is meant for a person, so it must carry a message.
    """
    caught: Caught[E] = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
    except Exception as error:
        found = f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}"
        raise AssertionError(broken(found, promise)) from error
    else:
        raise AssertionError(broken(f"{what} did not raise {kind.__name__}", promise))
    if isinstance(caught.error, ParallaxError):
        assert caught.error.message, broken(f"{what} raised {kind.__name__} without a message", promise)


@contextmanager
def keep(kind: type[BaseException], what: str, promise: str) -> Iterator[None]:
    """Fail if the block raises ``kind``; ``what`` is a thing or a person that is then said to have been lost."""
    try:
        yield
    except kind as error:
        raise AssertionError(broken(f"{what} was lost: {error}", promise)) from error


@contextmanager
def expect_hint(what: str, promise: str) -> Iterator[None]:
    """Fail unless the block raises a `ParallaxError` that says what to do next."""
    with expect(ParallaxError, what, promise) as caught:
        yield
    assert caught.error
    assert caught.error.hint, broken(f"{what} raised {caught.error.message!r} without a hint", promise)
