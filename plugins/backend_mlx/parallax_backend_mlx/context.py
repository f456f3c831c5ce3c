"""What the stage keeps of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from parallax_backend_mlx.cache import Cache, copy_cache, cut_cache
from parallax_core.api import Draft, Draw, Fork, Row, SequenceSpec


def no_tokens() -> array[int]:
    """Return an empty array of token ids."""
    return array("I")


@dataclass(slots=True)
class Context:
    """One sequence: its tokens, and what the model remembers of them."""

    spec: SequenceSpec
    cache: Cache
    choice: int = 0
    tokens: array[int] = field(default_factory=no_tokens)

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.tokens)

    def fork(self, edit: Fork) -> Context:
        """Return a context of its own, as ``edit`` describes it.

        Raises:
            ValueError: if it is longer than this one, or has another adapter.
            Unsupported: if the model's state cannot go back to that length.
        """
        spec = edit.spec or self.spec
        if spec.adapter != self.spec.adapter:
            message = f"a fork keeps the adapter {self.spec.adapter!r}, and cannot have {spec.adapter!r}"
            raise ValueError(message)
        excess = self._find_excess(edit.length)
        cache = copy_cache(self.cache)
        cut_cache(cache, excess)
        return Context(spec, cache, edit.choice, self.tokens[: edit.length])

    def truncate(self, length: int) -> None:
        """Forget the tokens from ``length`` on.

        Raises:
            ValueError: if it is shorter than that.
            Unsupported: if the model's state cannot go back to that length.
        """
        cut_cache(self.cache, self._find_excess(length))
        del self.tokens[length:]

    def list_drafts(self, row: Row) -> Iterator[Draft]:
        """Yield what is known at each draw of ``row``, which continues this sequence."""
        split = self.spec.prompt_length
        for output in row.outputs:
            if not isinstance(output, Draw):
                continue
            tokens = self.tokens + array("I", row.tokens[: output.offset + 1])
            prompt, written = tokens[:split], tokens[split:]
            for choice in range(self.choice, self.choice + output.count):
                yield Draft(self.spec.sampling, prompt, written, choice)

    def _find_excess(self, length: int) -> int:
        if not 0 <= length <= self.length:
            message = f"length {length} is not within the sequence's length {self.length}"
            raise ValueError(message)
        return self.length - length
