"""Upper bounds, in bytes, for the parts of a step and of its result in the header of a frame.

The scheduler adds them up when it plans a step, so that no header exceeds `FrameLimits.header_bytes`. They hold for
any numbers, and so are up to three times the actual size.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.contracts.stage import Drop, Edit, Fork, Open, SequenceSpec, StageInfo, Truncate

NUMBER = 9
"""An integer or a float: a type byte and eight bytes."""
SHORT, LONG = 1, 5
"""The prefix of an array or a text: with fewer than 16 items or 32 bytes, and of any length."""
PAIR = SHORT + 2 * NUMBER
"""A pair of numbers."""
DROP = SHORT + 2 * NUMBER
ROW = SHORT + 2 * NUMBER + 4 * LONG
"""A row without tokens and outputs."""
TOKEN = NUMBER
DRAW = SHORT + 5 * NUMBER
SCORE = SHORT + 4 * NUMBER
HIDDEN = SHORT + 3 * NUMBER
STATE = SHORT + 2 * NUMBER
"""The answer to a `Hidden`, without its tensor."""

ENTRY = SHORT + (SHORT + 16) + LONG + 8 * NUMBER + NUMBER
"""The entry of a tensor."""


def bound_text(text: str) -> int:
    """Return the bound for a text."""
    return LONG + 4 * len(text)


def bound_spec(spec: SequenceSpec) -> int:
    """Return the bound for a spec."""
    sampling = spec.sampling
    biases, stops = len(sampling.logit_bias) * PAIR, len(sampling.stop_ids) * NUMBER
    numbers = (len(spec.__struct_fields__) + len(sampling.__struct_fields__)) * NUMBER
    return 2 * LONG + numbers + 2 * LONG + biases + stops + bound_text(spec.adapter) + bound_text(spec.salt)


def bound_edit(edit: Edit) -> int:
    """Return the bound for an edit."""
    match edit:
        case Open(spec=spec):
            return SHORT + 3 * NUMBER + bound_spec(spec)
        case Fork(spec=spec):
            return SHORT + 5 * NUMBER + (bound_spec(spec) if spec is not None else SHORT)
        case Truncate():
            return SHORT + 3 * NUMBER
        case Drop():
            return DROP


def bound_drawn(count: int, top: int) -> int:
    """Return the bound for the answer to a `Draw`; ``top`` is -1 without log-probabilities."""
    return SHORT + NUMBER + 3 * LONG + count * NUMBER + (count * NUMBER + top * PAIR if top >= 0 else 0)


def bound_scored(top: int) -> int:
    """Return the bound for the answer to a `Score`."""
    return SHORT + 2 * NUMBER + LONG + top * PAIR


def bound_envelope(stages: Sequence[StageInfo]) -> int:
    """Return the bound for the rest: a step without edits and rows, or a result without answers, for any stage."""
    num_tensors = max((max(len(stage.takes), len(stage.gives)) for stage in stages), default=0)
    num_pools = max((len(stage.pools) for stage in stages), default=0)
    return SHORT + LONG + 6 * NUMBER + 4 * LONG + num_pools * NUMBER + num_tensors * ENTRY
