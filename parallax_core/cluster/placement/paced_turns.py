"""Predicts the turns of a pipeline whose head computes prompts in parts, beside the answers of other requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from parallax_core.engine.pacing import RATIO

MOST_STEP_TOKENS = 2048
"""The most prompt tokens of a step, as backends on GPUs have it by default; on processors it is less."""
MOST_HELD = 0.5
"""The head lets steps with prompts take longer and longer if prompts wait for more than this share of the time."""
HALVINGS = 8
"""How often the range of the prompt tokens in a step is halved, on a logarithmic scale."""
MOST_TRIES = 8
NEARLY = 0.003
"""The time of a turn is exact to this share."""


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
        decode_s, prompt_s, read_s, row_s, prompt_row_s, experts, fixed_s = self
        read_s += decodes * row_s
        if prompt:
            read_s += prompt_row_s
        for unmet, experts_s in experts:
            read_s += experts_s * (1.0 - unmet ** (decodes + prompt))
        compute_s = decodes * decode_s + prompt * prompt_s
        return (compute_s if compute_s > read_s else read_s) + fixed_s  # noqa: FURB136 -- most time goes here


class SteadyTurns(NamedTuple):
    """The steady state of a pipeline with several requests.

    In a turn, each request that has begun its answer is in one step. A turn is calm if its steps have no prompts.
    """

    number: float
    """The turns of a request."""
    groups: float
    """Steps with decodes in a turn."""
    decodes: float
    """In each of these."""
    limit: float
    """The most prompt tokens of a step."""
    chunk: float
    """The prompt tokens in each step of a turn that is not calm."""
    paced: float
    """The share of the turns that are not calm."""
    held: float
    """The share of the turns in which a prompt waits for the rest of it to be computed, beside answers."""
    calm_s: float
    paced_s: float
    waited: float
    """The turns from a request's arrival to its first token, after the step that has begun already."""

    @property
    def request_s(self) -> float:
        """Seconds of a request, from its arrival to its last token."""
        return self.number * (self.calm_s + self.paced * (self.paced_s - self.calm_s))

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token: what is left of the step that has begun, then turns with prompts."""
        return self.calm_s / self.groups + self.waited * self.paced_s


class RequestTimes(NamedTuple):
    """The mean times of a request beside others, in seconds."""

    ttft_s: float
    request_s: float
    stage_s: tuple[float, ...]
    """What each stage computes for it, if it shares its steps with others."""


class PacedTurns:
    """Finds the steady state of a number of requests, each followed by another one when it ends.

    The head adds as many prompt tokens to a step as keep the time between two tokens of an answer within `RATIO` times
    what it is without; the factor grows as long as prompts wait for more than half of the time (`engine.pacing`). So
    the prompt tokens of a step are the fewest that satisfy both. What prompts wait for each other is that of a closed
    queueing network with one server, by approximate mean value analysis (Schweitzer 1979; Reiser, "A queueing network
    analysis of computer communication networks with window flow control", 1979), with half of a service to go at the
    server, since all prompts are equal.
    """

    def __init__(
        self, stages: Sequence[StageStep], ways_s: float, copy_s: float, num_requests: int, lengths: tuple[int, int]
    ) -> None:
        """Describe the pipeline and its requests.

        Args:
            stages: its stages.
            ways_s: the seconds of a small message through all links.
            copy_s: the seconds that each token adds on all links.
            num_requests: at the same time.
            lengths: the tokens of a prompt, and of an answer after its first one.
        """
        self._stages, self._ways_s, self._copy_s = stages, ways_s, copy_s
        self._num_requests = num_requests
        self._prompt, self._decodes = lengths
        self._most_groups = count_groups(len(stages), num_requests)
        self._beside = max(1, min(self._most_groups, num_requests - 1))
        """The steps of a turn that have decodes while a request brings its prompt."""
        self._all_s = self.measure_turn(self._most_groups, num_requests / self._most_groups, 0.0)

    def measure(self) -> RequestTimes:
        """Return the times of a request."""
        num_requests, decodes = self._num_requests, self._decodes
        if num_requests == 1 or not decodes:
            return self._measure_free(self.measure_turn(1.0, 1.0, 0.0))
        turns = self.find()
        free, share = self._measure_free(turns.calm_s), self._share_alone(turns.number)
        steps = turns.number * turns.groups / num_requests
        calm_s = [steps * (1 - turns.paced) * stage.measure(turns.decodes, 0.0) for stage in self._stages]
        paced_s = [steps * turns.paced * stage.measure(turns.decodes, turns.chunk) for stage in self._stages]
        request_s = (1 - share) * turns.request_s + share * free.request_s
        stages = [
            (1 - share) * (calm + paced) + share * other
            for calm, paced, other in zip(calm_s, paced_s, free.stage_s, strict=True)
        ]
        request_s = max(request_s, num_requests * max(self._list_least()))
        most_s = request_s / num_requests
        ttft_s = (1 - share) * turns.ttft_s + share * free.ttft_s
        return RequestTimes(ttft_s, request_s, tuple(min(each, most_s) for each in stages))

    def find(self) -> SteadyTurns:
        """Return the steady state."""
        most = float(min(MOST_STEP_TOKENS, self._prompt * self._num_requests))
        found = self._keep_ratio(most)
        if self._is_held_little(found):
            return found
        low, high, turns = found.limit, most, self._settle(most)
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            between = self._settle(middle)
            if self._is_held_little(between):
                turns, high = between, middle
            else:
                low = middle
        return turns

    def _keep_ratio(self, most: float) -> SteadyTurns:
        """Return the steady state with the most prompt tokens in a step that make a turn at most `RATIO` times as long.

        By false position, with the Illinois rule (Dowell and Jarratt, BIT 1971), from what the stages could compute.
        """
        target_s = RATIO * self._all_s
        low, high, below_s, above_s = 0.0, most, self._all_s - target_s, 0.0
        tried = min(most, self._guess_tokens())
        for _ in range(MOST_TRIES):
            found = self._settle(tried)
            over_s = found.paced_s - target_s
            if abs(over_s) <= NEARLY * target_s or tried == (most if over_s < 0 else 1.0):
                break
            if over_s > 0:
                high, above_s, below_s = tried, over_s, below_s / 2
            else:
                low, below_s, above_s = tried, over_s, above_s / 2
            tried = max(1.0, (low * above_s - high * below_s) / (above_s - below_s)) if above_s else high
        return found

    def _guess_tokens(self) -> float:
        """Return about how many tokens of prompts would make a step on one of the stages `RATIO` times as long."""
        each, guess = self._num_requests / self._most_groups, float(MOST_STEP_TOKENS)
        for stage in self._stages:
            left_s = RATIO * stage.measure(each, 0.0) - stage.fixed_s - each * stage.decode_s
            guess = min(guess, left_s / stage.prompt_s) if stage.prompt_s > 0 else guess
        return max(1.0, guess)

    def measure_turn(self, groups: float, decodes: float, prompt: float) -> float:
        """Return the seconds of a turn: the way of a step through all stages, or the busiest stage, if that is longer.

        Args:
            groups: the steps in it.
            decodes: in each step.
            prompt: the tokens of prompts in each step.
        """
        sum_s = self._ways_s + (decodes + prompt) * self._copy_s
        slowest_s = 0.0
        for stage in self._stages:
            each_s = stage.measure(decodes, prompt)
            sum_s += each_s
            slowest_s = max(slowest_s, each_s)
        return max(sum_s, groups * slowest_s)

    def _is_held_little(self, turns: SteadyTurns) -> bool:
        """Return whether prompts wait so seldom that the head lets steps with prompts take no longer."""
        held_s, others_s = turns.held * turns.paced_s, (1 - turns.held) * self._all_s
        return held_s <= MOST_HELD * (held_s + others_s)

    def _settle(self, chunk: float) -> SteadyTurns:
        """Return the steady state if a step has at most ``chunk`` tokens of prompts."""
        prompt, num_requests, decodes = self._prompt, self._num_requests, self._decodes
        service = prompt / (self._beside * chunk)
        steps = prompt / chunk + 0.5 * (1 - chunk / prompt) if chunk < prompt else 1.0  # the last one is not full
        waited = 1 + (steps - 1) / self._beside + self._queue(service)
        number = max(decodes + waited + 1 / self._beside, num_requests * service)
        begun = 1 + (num_requests - 1) * decodes / number  # as one of them sees it
        groups = min(self._most_groups, begun)
        calm = (1 - 1 / number) ** (num_requests / groups)
        filled = min(chunk, max(num_requests * prompt / (number * groups * (1 - calm)), min(prompt, chunk)))
        paced = min(1.0, num_requests * prompt / (number * filled * min(self._beside, groups)))
        held = paced - num_requests / number / groups * (1 - paced) if chunk < prompt else 0.0
        held = max(0.0, held) * (1 - self._share_alone(number) / 2)
        each = begun / groups
        calm_s = self.measure_turn(groups, each, 0.0)
        paced_s = max(calm_s, self._measure_paced(groups, each, filled, calm_s))
        return SteadyTurns(number, groups, each, chunk, filled, paced, held, calm_s, paced_s, waited)

    def _share_alone(self, number: float) -> float:
        """Return the chance that no other request has begun its answer, if each takes ``number`` turns."""
        return float((1 - self._decodes / number) ** (self._num_requests - 1))

    def _queue(self, service: float) -> float:
        """Return the turns that a prompt waits for others, if each takes ``service`` turns."""
        surplus = self._decodes - service * self._num_requests
        product = service * (self._decodes - service * (self._num_requests - 1) / 2)
        root = sqrt(max(0.0, surplus * surplus + 4 * product))
        return max(0.0, (root - surplus) / 2 - service)

    def _measure_paced(self, groups: float, decodes: float, prompt: float, calm_s: float) -> float:
        """Return the seconds of a turn with prompts: in the steps of decodes, or, if stages are idle, between them."""
        within_s = self.measure_turn(groups, decodes, prompt)
        if len(self._stages) == 1:
            return within_s
        num_apart = max(1, len(self._stages) + 1 - self._beside)
        each = prompt * self._beside / num_apart
        busy_s = max(
            self._beside * stage.measure(decodes, 0.0) + num_apart * stage.measure(0.0, each) for stage in self._stages
        )
        return min(within_s, max(calm_s, busy_s + self._ways_s))

    def _measure_free(self, token_s: float) -> RequestTimes:
        """Return the times if no other request has begun its answer, so that steps may have prompts only.

        The prompts of the other requests are there too, and half of them are computed first on average. In a pipeline,
        the others hold up the answer: it follows them through the stages.
        """
        prompt, num_requests = self._prompt, self._num_requests
        chunk, most = min(prompt, MOST_STEP_TOKENS), min(num_requests * prompt, MOST_STEP_TOKENS)
        times = [stage.measure(0.0, chunk) for stage in self._stages]
        further = prompt / chunk - 1
        alone_s = sum(times) + self._ways_s + chunk * self._copy_s + further * max(times)
        all_s = num_requests * prompt / most * max(stage.measure(0.0, most) for stage in self._stages)
        others_s = max(0.0, all_s - max(times) * (1 + further))
        ttft_s = alone_s + others_s / 2
        behind_s = others_s / 2 if len(self._stages) > 1 else 0.0
        request_s = max(ttft_s + behind_s + self._decodes * token_s, all_s)
        stage_s = (
            each * (1 + further) + self._decodes * stage.measure(1.0, 0.0)
            for each, stage in zip(times, self._stages, strict=True)
        )
        return RequestTimes(ttft_s, request_s, tuple(min(each, request_s / num_requests) for each in stage_s))

    def _list_least(self) -> list[float]:
        """Return the seconds that each stage computes at least for a request, if reading takes no time."""
        return [self._prompt * stage.prompt_s + self._decodes * stage.decode_s for stage in self._stages]


def count_groups(num_stages: int, num_requests: int) -> int:
    """Return the steps among which requests are divided: several stages have one more in flight than there are."""
    return 1 if num_stages == 1 else min(num_requests, num_stages + 1)
