"""Runs rows one after the other on mlx-lm's own caches: for models whose caches do not fit into pages.

The account of such a stage shares no pages: each sequence has separate memory. mlx-lm truncates a cache by a number of
tokens, and not to a length, and the account has the new length already when the runner applies an edit; so the runner
keeps lengths too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_backend_mlx.cache import Cache, Mark, copy_cache, cut_cache, list_arrays
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.results import Copies, RunResult, find_sums, find_wanted, wants_states
from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.wanted_positions import Wanted
from parallax_core.api import Drop, Edit, Fork, Open, Row, SeqId, Truncate


@dataclass(slots=True)
class SequenceCache:
    """The cache of one sequence."""

    cache: Cache
    length: int = 0


class SerialRunner:
    """See `parallax_backend_mlx.results.Runner`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._held: dict[SeqId, SequenceCache] = {}
        self._marks: dict[SeqId, tuple[Mark, int]] = {}
        """The marks of the run in progress, by sequence."""

    def edit(self, edit: Edit, copies: Copies) -> None:
        """Follow ``edit``."""
        del copies  # every sequence has separate memory, which mlx-lm copies on the first write
        match edit:
            case Open(seq):
                self._held[seq] = SequenceCache(self._network.make_cache())
            case Fork(src, dst, length):
                source = self._held[src]
                cache = copy_cache(source.cache)
                cut_cache(cache, source.length - length)
                self._held[dst] = SequenceCache(cache, length)
            case Truncate(seq, length):
                held = self._held[seq]
                cut_cache(held.cache, held.length - length)
                held.length = length
            case Drop(seq):
                del self._held[seq]

    def run(self, rows: Sequence[Row], hidden: mx.array | None, copies: Copies) -> RunResult:
        """Run ``rows`` in order."""
        del copies
        self._marks = {row.seq: (Mark(self._held[row.seq].cache), row.start) for row in rows}
        picked, states, first = [], [], 0
        for row in rows:
            part = hidden if hidden is None else hidden[None, first : first + len(row.tokens)]
            first += len(row.tokens)
            found = self._run_row(row, part)
            if found is not None:
                picked.append(found)
            if self._network.is_last and row.outputs and self._network.states is not None and wants_states(rows):
                states.append(self._network.states)
        caches = [self._held[row.seq].cache for row in rows]
        mx.eval(picked, states, list_arrays(caches))
        joined = mx.concatenate(picked) if picked else None
        if not self._network.is_last:
            return RunResult(hidden=joined)
        return RunResult(joined, mx.concatenate(states) if states else None)

    def undo(self) -> None:
        """Restore the caches, and evaluate them."""
        for seq, (mark, length) in self._marks.items():
            mark.restore()
            self._held[seq].length = length
        mx.eval(list_arrays([self._held[seq].cache for seq in self._marks]))

    def _run_row(self, row: Row, hidden: mx.array | None) -> mx.array | None:
        held = self._held[row.seq]
        wanted = find_wanted(row, is_last=self._network.is_last)
        # For a row without outputs, only its cache is evaluated.
        places = Wanted(mx.array(list(wanted), dtype=mx.int32), tuple(find_sums(row, 0))) if wanted else None
        tokens = mx.array([list(row.tokens)], dtype=mx.int32)
        with self._network.adapters.adding([row]):
            found = self._network.run(tokens, hidden, held.cache, places)
        held.length += len(row.tokens)
        if not self._network.is_last:
            return found[0]
        return found if wanted else None
