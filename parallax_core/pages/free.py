"""The free pages of a pool, in memory that does not grow with the pool."""

from __future__ import annotations

from collections.abc import Container, Iterator


class FreePages:
    """A stack of the page ids ``0`` to ``num_pages - 1``, with 0 on top.

    Ids that were never taken are represented by a counter, and only returned ones by a list, so that a new pool is
    cheap whatever its size.
    """

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._untouched = 0
        """The lowest id that was never taken."""
        self._returned: list[int] = []

    def __len__(self) -> int:
        return self._num_pages - self._untouched + len(self._returned)

    def __iter__(self) -> Iterator[int]:
        yield from self._returned
        yield from range(self._untouched, self._num_pages)

    def pop(self) -> int:
        """Take the page that was returned last, or else the lowest that was never taken.

        Raises:
            IndexError: if no page is free.
        """
        if self._returned:
            return self._returned.pop()
        if self._untouched == self._num_pages:
            raise IndexError("no page is free")
        self._untouched += 1
        return self._untouched - 1

    def append(self, page: int) -> None:
        """Return a page that was taken."""
        self._returned.append(page)

    def remove_all(self, used: Container[int]) -> None:
        """Remove the pages in ``used`` from the returned ones; takes time in the number of returned pages."""
        self._returned = [page for page in self._returned if page not in used]
