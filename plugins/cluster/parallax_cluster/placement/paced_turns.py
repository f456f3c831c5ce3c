"""Predicts the turns of a pipeline that computes prompts in parts beside running answers."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from typing import NamedTuple

from parallax_cluster.placement.stage_step import StageStep, count_groups
from parallax_core.engine.pacing import RATIO

MOST_STEP_TOKENS = 2048
"""The most prompt tokens of a step, as backends on GPUs have it by default; on processors it is less."""
PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of pieces of a lone prompt that are compared; the head compares all up to the last."""
MOST_IN_FLIGHT = 16
"""The most steps that the head has in flight."""
MOST_HELD = 0.5
"""The head lets steps with prompts take longer and longer if prompts wait for more than this share of the time."""
MOST_TRIES = 8
MOST_GROWTH = 4
NEARLY = 0.003
"""The time of a turn is exact to this share, and the share of the time that prompts wait to this difference."""
NEGLIGIBLE = 1e-9
"""Outcomes less probable than this are not computed."""


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
        self,
        stages: Sequence[StageStep],
        ways_s: float,
        copies_s: Sequence[float],
        num_requests: int,
        lengths: tuple[int, int],
    ) -> None:
        """Describe the pipeline and its requests.

        Args:
            stages: its stages.
            ways_s: the seconds of a small message through all links.
            copies_s: the seconds that each token adds on each link.
            num_requests: at the same time.
            lengths: the tokens of a prompt, and of an answer after its first one.
        """
        self._stages, self._ways_s, self._copy_s = stages, ways_s, sum(copies_s)
        self._slowest_copy_s = max(copies_s, default=0.0)
        self._num_requests = num_requests
        self._prompt, self._decodes = lengths
        self._all_s, self._most_groups = min(map(self._measure_calm, count_groups(len(stages), num_requests)))
        """The seconds of a turn in which all requests decode, and its steps: as many as make it shortest."""
        self._beside = max(1, min(self._most_groups, num_requests - 1))
        """The steps of a turn that have decodes while a request brings its prompt."""

    def _measure_calm(self, groups: int) -> tuple[float, int]:
        """Return the seconds of a turn in which all requests decode in ``groups`` steps, and that number."""
        each = self._num_requests / groups
        times = [stage.measure(each, 0.0) for stage in self._stages]
        return max(sum(times) + self._ways_s + each * self._copy_s, groups * max(times)), groups

    def measure(self) -> RequestTimes:
        """Return the times of a request."""
        num_requests = self._num_requests
        if num_requests == 1 or not self._decodes:
            return self._measure_free(self._measure_alone())
        turns = self.find()
        steps, paced = turns.number * turns.groups / num_requests, turns.paced
        stages = [
            steps
            * ((1 - paced) * stage.measure(turns.decodes, 0.0) + paced * stage.measure(turns.decodes, turns.chunk))
            for stage in self._stages
        ]
        ttft_s, request_s = turns.ttft_s, turns.request_s
        if (share := self._share_alone(turns.number)) > NEGLIGIBLE:
            free = self._measure_free(turns.calm_s)
            ttft_s, request_s = _mix(share, ttft_s, free.ttft_s), _mix(share, request_s, free.request_s)
            stages = [_mix(share, beside_s, alone_s) for beside_s, alone_s in zip(stages, free.stage_s, strict=True)]
        request_s = max(request_s, num_requests * self._measure_least())
        most_s = request_s / num_requests
        return RequestTimes(ttft_s, request_s, tuple(min(each, most_s) for each in stages))

    def find(self) -> SteadyTurns:
        """Return the steady state."""
        most = float(min(MOST_STEP_TOKENS, self._prompt * self._num_requests))
        found = self._keep_ratio(most)
        return found if self._share_held(found) <= MOST_HELD else self._hold_less(found, most)

    def _keep_ratio(self, most: float) -> SteadyTurns:
        """Return the steady state with the most prompt tokens in a step that make a turn at most `RATIO` times as long.

        By false position, with the Illinois rule (Dowell and Jarratt, BIT 1971), from what the stages could compute. If
        `MOST_TRIES` do not suffice, it is the state whose turns come nearest.
        """
        target_s = RATIO * self._all_s
        bracket = _Bracket(0.0, self._all_s - target_s, most)
        tried, nearest_s = min(most, self._guess_tokens()), inf
        for _ in range(MOST_TRIES):
            turns = self._settle(tried)
            over_s = turns.paced_s - target_s
            if abs(over_s) < nearest_s:
                found, nearest_s = turns, abs(over_s)
            if abs(over_s) <= NEARLY * target_s or tried == (most if over_s < 0 else 1.0):
                break
            tried = max(1.0, bracket.narrow(tried, over_s))
        return found

    def _hold_less(self, found: SteadyTurns, most: float) -> SteadyTurns:
        """Return the steady state with the fewest prompt tokens in a step, at most ``most``, with which few wait.

        By false position on a logarithmic scale, from a state in which they wait too long.
        """
        turns = self._settle(most)
        if (share := self._share_held(turns)) > MOST_HELD:
            return turns
        bracket = _Bracket(log(found.limit), MOST_HELD - self._share_held(found), log(most), MOST_HELD - share)
        for _ in range(MOST_TRIES):
            between = self._settle(exp(bracket.find_middle()))
            under = MOST_HELD - self._share_held(between)
            bracket.narrow(log(between.limit), under)
            turns = between if under >= 0 else turns
            if abs(under) <= NEARLY or bracket.width <= NEARLY:
                break
        return turns

    def _guess_tokens(self) -> float:
        """Return about how many tokens of prompts would make a step on one of the stages `RATIO` times as long."""
        each, guess = self._num_requests / self._most_groups, float(MOST_STEP_TOKENS)
        for stage in self._stages:
            if stage.prompt_s > 0:
                left_s = RATIO * stage.measure(each, 0.0) - stage.fixed_s - each * stage.decode_s
                guess = min(guess, left_s / stage.prompt_s)
        return max(1.0, guess)

    def _measure_alone(self) -> float:
        """Return the seconds of a token of a request alone."""
        return sum(stage.measure(1.0, 0.0) for stage in self._stages) + self._ways_s + self._copy_s

    def _share_held(self, turns: SteadyTurns) -> float:
        """Return the share of time in which prompts wait; the head then lets steps take longer."""
        held_s = turns.held * turns.paced_s
        return held_s / (held_s + (1 - turns.held) * self._all_s)

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
        calm_s, paced_s = self._measure_both(groups, each, filled)
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

    def _measure_both(self, groups: float, decodes: float, prompt: float) -> tuple[float, float]:
        """Return the seconds of a turn without prompts, and with them: in the steps of decodes, or between these.

        The latter is possible in pipelines, where stages are idle for a time.
        """
        beside = self._beside
        num_apart = max(1, len(self._stages) + 1 - beside)
        apart = prompt * beside / num_apart
        calm_s = self._ways_s + decodes * self._copy_s
        within_s = calm_s + prompt * self._copy_s
        slowest_s = longest_s = busy_s = 0.0
        for stage in self._stages:
            each_s, with_s, apart_s = stage.measure_three(decodes, prompt, apart)
            calm_s += each_s
            within_s += with_s
            between_s = beside * each_s + num_apart * apart_s
            slowest_s = each_s if each_s > slowest_s else slowest_s  # noqa: FURB136 -- a call takes longer
            longest_s = with_s if with_s > longest_s else longest_s  # noqa: FURB136
            busy_s = between_s if between_s > busy_s else busy_s  # noqa: FURB136
        calm_s, within_s = max(calm_s, groups * slowest_s), max(within_s, groups * longest_s)
        if len(self._stages) == 1:
            return calm_s, max(calm_s, within_s)
        return calm_s, max(calm_s, min(within_s, busy_s + self._ways_s))

    def _measure_free(self, token_s: float) -> RequestTimes:
        """Return the times if no other request has begun its answer, so that steps may have prompts only.

        The prompts of the other requests are there too, and half of them are computed first on average. In a pipeline,
        the others hold up the answer: it follows them through the stages.
        """
        prompt, num_requests = self._prompt, self._num_requests
        chunk, most = float(min(prompt, MOST_STEP_TOKENS)), min(num_requests * prompt, MOST_STEP_TOKENS)
        if num_requests == 1 and len(self._stages) > 1:
            chunk = min((chunk / count for count in PIECES), key=self._measure_pieces)
        times = [stage.measure(0.0, chunk) for stage in self._stages]
        further, alone_s = prompt / chunk - 1, self._measure_pieces(chunk)
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

    def _measure_pieces(self, chunk: float) -> float:
        """Return the seconds until all stages have computed a prompt in pieces of ``chunk`` tokens, with no other."""
        times = [stage.measure(0.0, chunk) for stage in self._stages]
        through_s = sum(times) + self._ways_s + chunk * self._copy_s
        each_s = max(*times, through_s / MOST_IN_FLIGHT, chunk * self._slowest_copy_s)
        return through_s + (self._prompt / chunk - 1) * each_s

    def _measure_least(self) -> float:
        """Return the seconds that the busiest stage computes at least for a request, if reading takes no time."""
        return max(self._prompt * stage.prompt_s + self._decodes * stage.decode_s for stage in self._stages)


class _Bracket:
    """Encloses the root of a rising function, for false position with the Illinois rule."""

    def __init__(self, low: float, below: float, high: float, above: float = 0.0) -> None:
        """Begin with two places, and the values there: below 0, and above; 0: it is not known."""
        self._low, self._below, self._high, self._above = low, below, high, above
        self._has_raised: bool | None = None

    @property
    def width(self) -> float:
        """The distance of the two places."""
        return self._high - self._low

    def find_middle(self) -> float:
        """Return where a straight line between the two places crosses 0."""
        return (self._low * self._above - self._high * self._below) / (self._above - self._below)

    def narrow(self, place: float, value: float) -> float:
        """Take a place between the two, and its value, for one of them; return where to try next.

        A place that stays twice in a row counts with half of its value. While only values below 0 are known, the next
        place is where the line through the last two crosses 0, at most `MOST_GROWTH` times as far.
        """
        if value > 0:
            self._below = self._below / 2 if self._has_raised is False else self._below
            self._high, self._above = place, value
        elif not self._above:
            slope = (value - self._below) / (place - self._low)
            self._low, self._below = place, value
            return min(self._high, MOST_GROWTH * place, place - value / slope if slope > 0 else inf)
        else:
            self._above = self._above / 2 if self._has_raised else self._above
            self._low, self._below = place, value
        self._has_raised = value <= 0
        return self.find_middle()


def _mix(share: float, one: float, other: float) -> float:
    return (1 - share) * one + share * other
