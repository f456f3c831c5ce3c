"""The kit for workers: tests how a stage behind the wire protocol replies to valid and invalid steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from parallax_core.base.errors import BackendFailed
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drawn, LayerRange, Stage
from parallax_core.testing.bench import (
    LAST,
    MIDDLE,
    TOY,
    WHOLE,
    Bench,
    WorkerLinks,
    drop_sequence,
    give_hidden,
    make_step,
    open_sequence,
    set_up,
)
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import in_loop, within
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.messages import Failure, Result, Step

RESULT = "Reports a finished step, directly to the head: any stage with its free pages, the last also with the answers"
ANSWERS = "One for each output of each row, in row order; empty from a stage before the last"
FREE = "Free pages of each pool of the stage after the step"
CHANNEL = "Edits and rows, from the head to stage 0 and from each stage to the next: one ordered channel"
EDITS_ONLY = "Empty: the step only edits, but keeps its place in the order"
OLDER = "A number that a head raises when it builds, repairs or reloads a pipeline; older messages are discarded"
STALE = "a receiver discards what is of an older epoch"
ENDS = "a stage ends with the link to its head"
FAILED = "Reports that a step failed on a stage, directly to the head"
GOES_ON = "False: every sequence is as before the step, and the stage goes on. True: the state of the stage is unknown"
AGAIN = "until one has the number of the failed step again: it comes from a head that knows of the failure"
AT_FAULT = "The sequences of the step that are at fault"

PROMPT = (3, 1, 4)
STEPS = 20


class WorkerConformance:
    """Holds a worker to the contract of the wire messages.

    Subclass it in a test module under a name that begins with ``Test``, and give `work`. The stages are toys.
    """

    patience_s: float = 20.0
    """Seconds that a test waits for an expected event."""

    async def work(self, open_stage: Callable[[], Stage], number: int, links: WorkerLinks) -> None:
        """Open a stage and run it as stage ``number`` until cancelled or the head is lost.

        It must leave nothing running afterwards.
        """
        raise NotImplementedError

    @in_loop
    async def test_answers_are_those_of_the_stage(self) -> None:
        """A stage of the whole model draws the tokens of the model, and reports its free pages."""
        stage = TOY.open(WHOLE)
        expected = TOY.continuation(PROMPT, 4)
        async with self._bench(stage) as bench:
            drawn = await self._generate(bench, 4)
            assert drawn == expected, broken(
                f"the worker returns the tokens {drawn}, but the stage draws {expected}", ANSWERS
            )
            await bench.head.send(make_step(5, [drop_sequence(1), open_sequence(2)], [(2, 0, PROMPT)]))
            result = await bench.head.hear_result()
            assert result.free == stage.free, broken(
                f"the stage has {stage.free} pages free, but the worker reports {result.free}", FREE
            )

    @in_loop
    async def test_results_keep_the_order_of_the_steps(self) -> None:
        """However many steps are in flight, there is one result for each, in their order."""
        async with self._bench(TOY.open(WHOLE, context=200, num_pages=100)) as bench:
            await bench.head.send(*self._make_steps(STEPS))
            numbers = [(await bench.head.hear_result()).step for _ in range(STEPS)]
            assert numbers == list(range(1, STEPS + 1)), broken(f"the results are those of steps {numbers}", CHANNEL)
            rest = await bench.head.hear_rest()
            assert not rest, broken(f"after all results, the worker sent {rest}", RESULT)

    @in_loop
    async def test_step_goes_on_to_the_next_stage(self) -> None:
        """A middle stage forwards edits, rows and its own hidden states, in order, and reports to the head."""
        stage = TOY.open(MIDDLE, context=200, num_pages=100)
        steps = [give_hidden(step) for step in self._make_steps(STEPS)]
        async with self._bench(stage, MIDDLE) as bench:
            await bench.before.send(*steps)
            for step in steps:
                onward, result = await bench.after.hear(), await bench.head.hear_result()
                assert isinstance(onward, Step), broken(f"the next stage received {onward} instead of a Step", CHANNEL)
                same = (onward.epoch, onward.step, onward.edits, onward.rows)
                wanted = (step.epoch, step.step, step.edits, step.rows)
                assert same == wanted, broken(f"{wanted} was forwarded as {same}", CHANNEL)
                is_new = len(onward.hidden) == len(stage.info.gives) and onward.hidden != step.hidden
                assert is_new, broken("the forwarded hidden states are not those that the stage returned", CHANNEL)
                is_bare = not result.answers and (result.step, result.stage) == (step.step, MIDDLE.start)
                assert is_bare, broken(f"a stage before the last reports {result}", ANSWERS)

    @in_loop
    async def test_last_stage_answers_to_the_head(self) -> None:
        """The last stage takes steps from the stage before it, and sends its results to the head."""
        async with self._bench(TOY.open(LAST), LAST) as bench:
            await bench.before.send(give_hidden(make_step(1, [open_sequence(1, 3)], [(1, 0, PROMPT)])))
            result = await bench.head.hear_result()
            assert len(result.answers) == 1, broken(f"a step with one draw has the answers {result.answers}", ANSWERS)

    @in_loop
    async def test_step_that_only_edits_takes_its_place(self) -> None:
        """A step without rows is applied and forwarded like any other, and its result has no answers."""
        async with self._bench(TOY.open(MIDDLE), MIDDLE) as bench:
            steps = [make_step(1, [open_sequence(1)]), make_step(2, [drop_sequence(1)]), make_step(3)]
            await bench.before.send(*steps)
            for step in steps:
                onward, result = await bench.after.hear(), await bench.head.hear_result()
                assert onward == step, broken(f"{step} was forwarded as {onward}", EDITS_ONLY)
                is_bare = result.step == step.step and not result.answers
                assert is_bare, broken(f"a step without rows has the result {result}", EDITS_ONLY)

    @in_loop
    async def test_new_epoch_begins_with_nothing(self) -> None:
        """All sequences of the old one are dropped, their handles and pages are free, and steps count from 1."""
        stage = TOY.open(WHOLE)
        async with self._bench(stage) as bench:
            await self._generate(bench, 3)
            await bench.head.send(make_step(1, epoch=1))
            free = (await bench.head.hear_result()).free
            full = tuple(pool.num_pages for pool in stage.info.pools)
            assert stage.tokens == {}, broken(f"in a new epoch, the sequences {stage.tokens} are still open", OLDER)
            assert free in ((), full), broken(f"in a new epoch, {free} pages of {full} are free", OLDER)
            await bench.head.send(make_step(2, [open_sequence(1, 3)], [(1, 0, PROMPT)], epoch=1))
            drawn = _read_token(await bench.head.hear_result())
            assert drawn == TOY.continuation(PROMPT, 1), broken(f"in a new epoch, {drawn} is drawn", OLDER)

    @in_loop
    async def test_stale_steps_are_discarded(self) -> None:
        """A step of an older epoch is not run, not answered and not forwarded."""
        stage = TOY.open(MIDDLE)
        stale = give_hidden(make_step(2, [open_sequence(9)], [(9, 0, PROMPT)], epoch=4))
        async with self._bench(stage, MIDDLE) as bench:
            await bench.before.send(make_step(1, [open_sequence(1)], epoch=5), stale, make_step(2, epoch=5))
            await self._check_only(bench, [(5, 1), (5, 2)], STALE)
            assert list(stage.tokens) == [1], broken(
                f"after a stale step, the open sequences are {stage.tokens}", OLDER
            )

    @in_loop
    async def test_gap_in_the_steps_is_a_loss(self) -> None:
        """A step with a missing or repeated number makes the stage lost, because its state is unknown."""
        for numbers in ((2,), (1, 3), (1, 1), (1, 2, 1)):
            async with self._bench(TOY.open(MIDDLE), MIDDLE) as bench:
                await bench.before.send(*(make_step(number) for number in numbers))
                for _ in numbers[:-1]:
                    await bench.head.hear_result()
                failure = await bench.head.hear_failure()
                assert failure.lost, broken(
                    f"after steps {numbers}, the worker reports {failure}, and not a loss", GOES_ON
                )

    @in_loop
    async def test_failed_step_is_told_and_the_stage_goes_on(self) -> None:
        """One failure with its cause, not a loss; later steps of the epoch are discarded, and a new epoch works."""
        toy = TOY.open(WHOLE)
        stage = FaultStage(toy, Fault("step", at=1, error=BackendFailed("no more of this")))
        async with self._bench(stage) as bench:
            await bench.head.send(*self._make_steps(4))
            await bench.head.hear_result()
            failure = await bench.head.hear_failure()
            place = (failure.epoch, failure.step, failure.stage)
            assert place == (0, 2, 0), broken(f"step 2 failed, but the worker reports {failure}", FAILED)
            assert "no more of this" in failure.message, broken(
                f"{failure} does not say why", "A description of the failure"
            )
            assert not failure.lost, broken("a failed step that changed nothing is reported as a loss", GOES_ON)
            rest = await bench.head.hear_rest()
            assert not rest, broken(f"after a failed step, the worker sent {rest}", OLDER)
            assert len(toy.batches) == 1, broken("steps after the failed one were run", GOES_ON)
            await bench.head.send(make_step(1, [open_sequence(1, 3)], [(1, 0, PROMPT)], epoch=1))
            drawn = _read_token(await bench.head.hear_result())
            assert drawn == TOY.continuation(PROMPT, 1), broken(f"after a failure, {drawn} is drawn", GOES_ON)

    @in_loop
    async def test_failed_step_may_be_tried_again(self) -> None:
        """After a failure, the head sends another step with the same number, and the stage still has its sequences."""
        stage = FaultStage(TOY.open(WHOLE, context=200, num_pages=100), Fault("step", at=1))
        async with self._bench(stage) as bench:
            first, second, *later = self._make_steps(4)
            await bench.head.send(first, second, *later)
            await bench.head.hear_result()
            await bench.head.hear_failure()
            await bench.head.send(make_step(2, [open_sequence(2, 3)], [(2, 0, PROMPT)]))
            drawn = _read_token(await bench.head.hear_result())
            assert drawn == TOY.continuation(PROMPT, 1), broken(f"after a failure, {drawn} is drawn", AGAIN)
            await bench.head.send(make_step(3, [], [(1, 1, (5,))]))
            await bench.head.hear_result()

    @in_loop
    async def test_sequences_at_fault_are_named(self) -> None:
        """The sequences that the backend names are reported to the head, so that only their requests end."""
        error = BackendFailed("not a number", sequences=[SeqId(1)])
        stage = FaultStage(TOY.open(WHOLE, context=200, num_pages=100), Fault("step", at=0, error=error))
        async with self._bench(stage) as bench:
            await bench.head.send(make_step(1, [open_sequence(1)], [(1, 0, PROMPT)]))
            failure = await bench.head.hear_failure()
            assert failure.sequences == (1,), broken(
                f"sequence 1 is at fault, but the worker reports {failure}", AT_FAULT
            )

    @in_loop
    async def test_failed_step_is_not_handed_on(self) -> None:
        """The next stage receives neither the failed step nor those after it."""
        stage = FaultStage(TOY.open(MIDDLE, context=200, num_pages=100), Fault("step", at=1))
        async with self._bench(stage, MIDDLE) as bench:
            await bench.before.send(*(give_hidden(step) for step in self._make_steps(4)))
            await bench.head.hear_result()
            await bench.head.hear_failure()
            numbers = [message.step for message in await bench.after.hear_rest() if isinstance(message, Step)]
            assert numbers == [1], broken(f"step 2 failed, but the next stage received the steps {numbers}", FAILED)

    @in_loop
    async def test_failed_edit_is_a_loss(self) -> None:
        """After a failed edit the state of the stage is unknown, so it is lost."""
        async with self._bench(TOY.open(WHOLE)) as bench:
            await bench.head.send(make_step(1, [drop_sequence(9)]))
            failure = await bench.head.hear_failure()
            assert failure.lost, broken(f"an edit failed, but the worker reports {failure}, and not a loss", GOES_ON)

    @in_loop
    async def test_lost_neighbour_is_told_to_the_head(self) -> None:
        """When the link to a neighbour closes, the worker reports a loss to the head."""
        for name in ("before", "after"):
            async with self._bench(TOY.open(MIDDLE), MIDDLE) as bench:
                await (bench.before if name == "before" else bench.after).link.close()
                failure = await bench.head.hear_failure()
                assert failure.lost, broken(
                    f"the link to the stage {name} is gone, but the worker reports {failure}, and not a loss", GOES_ON
                )

    @in_loop
    async def test_work_ends_when_the_head_is_lost(self) -> None:
        """The work ends within the time limit once the link to the head is closed."""
        for layers in (WHOLE, MIDDLE):
            async with self._bench(TOY.open(layers), layers) as bench:
                await bench.head.link.close()
                done = asyncio.wait([bench.working])
                await within(self.patience_s, done, "the worker goes on without a head", ENDS)

    def _bench(self, stage: ToyStage | FaultStage, layers: LayerRange = WHOLE) -> AbstractAsyncContextManager[Bench]:
        return set_up(self.work, stage, layers, self.patience_s)

    def _make_steps(self, count: int) -> list[Step]:
        """Return steps that open a sequence and give it a token each."""
        first = make_step(1, [open_sequence(1)], [(1, 0, (5,))])
        return [first, *(make_step(number, [], [(1, number - 1, (5 + number,))]) for number in range(2, count + 1))]

    async def _generate(self, bench: Bench, count: int) -> list[int]:
        """Return ``count`` tokens of the whole model's answer to `PROMPT`, in as many steps."""
        tokens = list(PROMPT)
        for number in range(1, count + 1):
            start = 0 if number == 1 else len(tokens) - 1
            edits = [open_sequence(1, len(PROMPT))] if number == 1 else []
            await bench.head.send(make_step(number, edits, [(1, start, tokens[start:])]))
            tokens += _read_token(await bench.head.hear_result())
            assert len(tokens) == len(PROMPT) + number, broken(f"step {number} drew no token", ANSWERS)
        return tokens[len(PROMPT) :]

    async def _check_only(self, bench: Bench, expected: Sequence[tuple[int, int]], promise: str) -> None:
        """Check that these (epoch, step) are all that is reported and handed on."""
        for post, who in ((bench.head, "the head"), (bench.after, "the next stage")):
            heard = [message for message in await post.hear_rest() if isinstance(message, Result | Step | Failure)]
            found = [(message.epoch, message.step) for message in heard]
            assert found == list(expected), broken(
                f"{who} received (epoch, step) {found} instead of {expected}", promise
            )


def _read_token(result: Result) -> list[int]:
    return [token for answer in result.answers if isinstance(answer, Drawn) for token in answer.tokens]
