"""The stage's state of one sequence, besides the model's cache."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from parallax_core.api import Draft, Draw, Fork, Row, SequenceSpec


def no_tokens() -> array[int]:
    """Return an empty array of token ids."""
    return array("I")


@dataclass(slots=True)
class SequenceState:
    """The tokens of one sequence, and how those after them are drawn."""

    spec: SequenceSpec
    choice: int = 0
    tokens: array[int] = field(default_factory=no_tokens)

    @property
    def length(self) -> int:
        """Its number of tokens."""
        return len(self.tokens)

    def fork(self, edit: Fork) -> SequenceState:
        """Return a context of its own, as ``edit`` describes it.

        Raises:
            ValueError: if it has another adapter.
        """
        spec = edit.spec or self.spec
        if spec.adapter != self.spec.adapter:
            message = f"a fork keeps the adapter {self.spec.adapter!r}, and cannot have {spec.adapter!r}"
            raise ValueError(message)
        return SequenceState(spec, edit.choice, self.tokens[: edit.length])

    def list_drafts(self, row: Row) -> Iterator[Draft]:
        """Yield the draft of each draw of ``row``, which continues this sequence."""
        split = self.spec.prompt_length
        for output in row.outputs:
            if not isinstance(output, Draw):
                continue
            tokens = self.tokens + array("I", row.tokens[: output.offset + 1])
            prompt, written = tokens[:split], tokens[split:]
            for choice in range(self.choice, self.choice + output.count):
                yield Draft(self.spec.sampling, prompt, written, choice)
