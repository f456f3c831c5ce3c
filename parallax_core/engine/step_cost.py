"""Learns from measured steps how long a step takes, by the rows it has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from parallax_core.contracts.stage import Row

KEPT = 0.97
"""The weight of an earlier step, compared with the one after it: some thirty steps count."""
SWEEPS = 4
"""Improvements of all costs for each measured step; the next steps improve them further."""
DECODE_DOUBT = 0.02
"""How much the costs of decodes are drawn to 0, so that they cost nothing until steps with more of them do."""
UNIT = 1024
"""Attended tokens are counted in this unit, so that all costs are of about the same size."""


class StepSize(NamedTuple):
    """What a step computes."""

    num_decodes: int = 0
    """Rows of one token."""
    decode_context: int = 0
    """The tokens to which the decodes attend, together."""
    num_prompt: int = 0
    """Tokens of longer rows."""
    prompt_context: float = 0.0
    """The tokens to which those attend, together."""

    def add(self, start: int, count: int) -> StepSize:
        """Return the size with a further row of ``count`` tokens from ``start`` on."""
        decodes, context, prompt, attended = self
        if count == 1:
            return StepSize(decodes + 1, context + start, prompt, attended)
        return StepSize(decodes, context, prompt + count, attended + count * (start + count / 2))

    def scale(self, num_decodes: int) -> StepSize:
        """Return the size of a step with ``num_decodes`` decodes of the same mean context, and no prompts."""
        return StepSize(num_decodes, self.decode_context * num_decodes // max(1, self.num_decodes))


def measure_rows(rows: Iterable[Row]) -> StepSize:
    """Return the size of a step with these rows."""
    size = StepSize()
    for row in rows:
        size = size.add(row.start, len(row.tokens))
    return size


class StepCosts:
    """The seconds of a step as a sum: of a fixed part, and parts for its decodes, its prompts and their contexts.

    The costs are those, none below 0, that fit the last steps best, by the squares of the relative errors: so a step
    that takes far longer than the others, as the first one does, hardly counts. They are found by coordinate descent,
    which leaves a cost as it is when the last steps say nothing of it.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        """The number of steps noted so far."""
        self._costs = (0.0,) * 5
        """Seconds per prompt token, per `UNIT` it attends to, per step, per decode, and per `UNIT` it attends to."""
        self._products = (0.0,) * 15
        """The sums of the products of two parts, in the order of the costs; their weights fall with time."""
        self._targets = (0.0,) * 5

    def note(self, size: StepSize, seconds: float) -> None:
        """Record how long a step of ``size`` took."""
        if seconds <= 0:
            return
        self.num_steps += 1
        v, w, x, y, z = _list_parts(size)
        self._add(v / seconds, w / seconds, x / seconds, y / seconds, z / seconds)
        self._improve()

    def predict(self, size: StepSize) -> float:
        """Return the seconds that a step of ``size`` would take; 0: not known."""
        return sum(cost * part for cost, part in zip(self._costs, _list_parts(size), strict=True))

    def predict_prompt(self, start: int, count: int) -> float:
        """Return the seconds by which ``count`` prompt tokens from ``start`` on would make a step longer."""
        return count * (self._costs[0] + self._costs[1] * (start + count / 2) / UNIT)

    def fit_prompt(self, seconds: float, start: int) -> float:
        """Return how many prompt tokens from ``start`` on are computed in ``seconds`` beside other rows."""
        per_token = self._costs[0] + self._costs[1] * start / UNIT
        per_square = self._costs[1] / (2 * UNIT)
        if seconds <= 0:
            return 0.0
        root = math.sqrt(per_token**2 + 4 * per_square * seconds)
        return 2 * seconds / (per_token + root) if root else math.inf

    def _add(self, v: float, w: float, x: float, y: float, z: float) -> None:
        """Add the parts of a step, divided by its seconds, to the sums."""
        vv, vw, vx, vy, vz, ww, wx, wy, wz, xx, xy, xz, yy, yz, zz = self._products
        self._products = (
            KEPT * vv + v * v,
            KEPT * vw + v * w,
            KEPT * vx + v * x,
            KEPT * vy + v * y,
            KEPT * vz + v * z,
            KEPT * ww + w * w,
            KEPT * wx + w * x,
            KEPT * wy + w * y,
            KEPT * wz + w * z,
            KEPT * xx + x * x,
            KEPT * xy + x * y,
            KEPT * xz + x * z,
            KEPT * yy + y * y,
            KEPT * yz + y * z,
            KEPT * zz + z * z,
        )
        a, b, c, d, e = self._targets
        self._targets = KEPT * a + v, KEPT * b + w, KEPT * c + x, KEPT * d + y, KEPT * e + z

    def _improve(self) -> None:
        """Do the sweeps: written out, since a pipeline does them after every step."""
        v, w, x, y, z = self._costs
        a, b, c, d, e = self._targets
        vv, vw, vx, vy, vz, ww, wx, wy, wz, xx, xy, xz, yy, yz, zz = self._products
        own_y, own_z = yy * (1 + DECODE_DOUBT), zz * (1 + DECODE_DOUBT)
        for _ in range(SWEEPS):
            if vv > 0:
                cost = (a - (v * vv + w * vw + x * vx + y * vy + z * vz) + v * vv) / vv
                v = cost if cost > 0 else 0.0
            if ww > 0:
                cost = (b - (v * vw + w * ww + x * wx + y * wy + z * wz) + w * ww) / ww
                w = cost if cost > 0 else 0.0
            if xx > 0:
                cost = (c - (v * vx + w * wx + x * xx + y * xy + z * xz) + x * xx) / xx
                x = cost if cost > 0 else 0.0
            if yy > 0:
                cost = (d - (v * vy + w * wy + x * xy + y * yy + z * yz) + y * yy) / own_y
                y = cost if cost > 0 else 0.0
            if zz > 0:
                cost = (e - (v * vz + w * wz + x * xz + y * yz + z * zz) + z * zz) / own_z
                z = cost if cost > 0 else 0.0
        self._costs = v, w, x, y, z


def _list_parts(size: StepSize) -> tuple[float, float, float, float, float]:
    """Return what each cost is multiplied with, in the order of `StepCosts`."""
    return size.num_prompt, size.prompt_context / UNIT, 1.0, size.num_decodes, size.decode_context / UNIT
