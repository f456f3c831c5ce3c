"""How many bytes the parts of a step, and of its result, take in the header of a frame, at most.

Whoever plans a step adds these up, so that no header is ever beyond `FrameLimits.header_bytes`. They hold whatever the
numbers are, and so are up to three times what is really written.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.contracts.stage import Drop, Edit, Fork, Open, SequenceSpec, StageInfo, Truncate

NUMBER = 9
"""Of an integer or a float: a byte that says which, and eight."""
SHORT, LONG = 1, 5
"""What an array or a text begins with: of fewer than 16 items or 32 bytes, and of any number."""
PAIR = SHORT + 2 * NUMBER

DROP = SHORT + 2 * NUMBER
ROW = SHORT + 2 * NUMBER + 4 * LONG
"""A row without tokens and outputs."""
TOKEN = NUMBER
DRAW = SHORT + 4 * NUMBER
SCORE = SHORT + 4 * NUMBER

ENTRY = SHORT + (SHORT + 16) + LONG + 8 * NUMBER + NUMBER
"""What stands for a tensor."""


def bound_text(text: str) -> int:
    """Return what a text takes."""
    return LONG + 4 * len(text)


def bound_spec(spec: SequenceSpec) -> int:
    """Return what a spec takes."""
    sampling = spec.sampling
    biases, stops = len(sampling.logit_bias) * PAIR, len(sampling.stop_ids) * NUMBER
    numbers = (len(spec.__struct_fields__) + len(sampling.__struct_fields__)) * NUMBER
    return 2 * LONG + numbers + 2 * LONG + biases + stops + bound_text(spec.adapter) + bound_text(spec.salt)


def bound_edit(edit: Edit) -> int:
    """Return what an edit takes."""
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
    """Return what the answer to a `Draw` takes; ``top`` is -1 without log-probabilities."""
    return SHORT + NUMBER + 3 * LONG + count * NUMBER + (count * NUMBER + top * PAIR if top >= 0 else 0)


def bound_scored(top: int) -> int:
    """Return what the answer to a `Score` takes."""
    return SHORT + 2 * NUMBER + LONG + top * PAIR


def bound_envelope(stages: Sequence[StageInfo]) -> int:
    """Return what a step takes beside its edits and rows, and a result beside its answers, on the way to any stage."""
    num_tensors = max((max(len(stage.takes), len(stage.gives)) for stage in stages), default=0)
    num_pools = max((len(stage.pools) for stage in stages), default=0)
    return SHORT + LONG + 6 * NUMBER + 4 * LONG + num_pools * NUMBER + num_tensors * ENTRY
