"""The seconds of a stage's steps, by the decodes and the prompt tokens in them."""

from __future__ import annotations

from typing import NamedTuple


class StageStep(NamedTuple):
    """The seconds of one stage's steps, as a function of what they compute: the roofline of its layers."""

    decode_s: float
    """Computing, for each decode."""
    prompt_s: float
    """Computing, for each token of a prompt."""
    read_s: float
    """Reading the weights that every step reads."""
    row_s: float
    """Reading the KV cache, for each decode."""
    prompt_row_s: float
    """Reading the KV cache of a prompt."""
    experts: tuple[tuple[float, float], ...]
    """For each kind of layer with experts, the share that a token does not meet, and the seconds to read all."""
    fixed_s: float

    def measure(self, decodes: float, prompt: float) -> float:
        """Return the seconds of a step with some decodes and some tokens of a prompt."""
        read_s = self.read_s + decodes * self.row_s
        if prompt:
            read_s += self.prompt_row_s
        for unmet, experts_s in self.experts:
            read_s += experts_s * (1.0 - unmet ** (decodes + prompt))
        return max(decodes * self.decode_s + prompt * self.prompt_s, read_s) + self.fixed_s

    def measure_three(self, decodes: float, prompt: float, apart: float) -> tuple[float, float, float]:
        """Return the seconds of a step with decodes, of one with tokens of a prompt too, and of ``apart`` such tokens.

        It is `measure` three times, written out: most time of a search goes here.
        """
        decode_s, prompt_s, read_s, row_s, prompt_row_s, experts, fixed_s = self
        decodes_s, alone_s = decodes * decode_s, apart * prompt_s
        both_s = decodes_s + prompt * prompt_s
        decodes_read_s, alone_read_s = read_s + decodes * row_s, read_s + prompt_row_s
        both_read_s = decodes_read_s + prompt_row_s
        for unmet, experts_s in experts:
            decodes_read_s += experts_s * (1.0 - unmet**decodes)
            both_read_s += experts_s * (1.0 - unmet ** (decodes + prompt))
            alone_read_s += experts_s * (1.0 - unmet**apart)
        return (
            (decodes_s if decodes_s > decodes_read_s else decodes_read_s) + fixed_s,  # noqa: FURB136 -- a call takes longer
            (both_s if both_s > both_read_s else both_read_s) + fixed_s,  # noqa: FURB136
            (alone_s if alone_s > alone_read_s else alone_read_s) + fixed_s,  # noqa: FURB136
        )


def count_groups(num_stages: int, num_requests: int) -> list[int]:
    """Return the steps that may share the requests: one for each stage, or one more that hides the links.

    The head takes those whose turns are shorter by its measured costs (`StageClock.may_depart`).
    """
    most = num_stages + 1 if num_stages > 1 else 1
    return sorted({min(num_stages, num_requests), min(most, num_requests)})
