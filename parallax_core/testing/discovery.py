"""The kit for discovery: questions reach the nodes that answer, and answers only the node that asks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from parallax_core.contracts.discovery import MOST_ANSWER_BYTES, MOST_QUESTION_BYTES, Discovery
from parallax_core.contracts.transport import TransportSpec
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.runner import in_loop

YIELD = "Ask on all networks of this machine, again and again, and yield each answer, until it is closed"
SILENT = "None: nothing is sent"
UNTIL = "Answer questions until the end of the context"
LENGTH = "an answer that is too long is not sent"
QUESTION = "if the question is too long"
OWN = "only to a question of this call"
QUESTIONED = "Returns the answer to a question"


class DiscoveryConformance:
    """Holds the discovery of a transport to `parallax_core.contracts.discovery`.

    Subclass it in a test module under a name that begins with ``Test``, and give ``spec`` and `make_address`.
    """

    spec: TransportSpec
    """The transport, with ``discovery``."""
    patience_s = 10.0
    """Seconds within which an answer arrives."""
    silence_s = 0.7
    """Seconds of silence after which no answer is expected any more; several questions are asked meanwhile."""

    def make_address(self) -> str:
        """Return an address of this transport at which a node listens in this process."""
        raise NotImplementedError

    def make_discovery(self) -> Discovery:
        """Return the discovery of a machine."""
        assert self.spec.discovery is not None, "the transport has discovery"
        return self.spec.discovery.load()()

    @in_loop
    async def test_answer_to_a_question_arrives(self) -> None:
        """The longest question reaches a node unchanged, and its longest answer comes back."""
        question, answer = bytes(range(MOST_QUESTION_BYTES)), bytes(MOST_ANSWER_BYTES - 1) + b"\1"
        heard: list[bytes] = []

        def find_answer(data: bytes) -> bytes:
            heard.append(data)
            return answer

        async with self.make_discovery().answering(self.make_address(), find_answer):
            found = await self.collect(question, 1)
        assert found == {answer}, broken(f"{len(found)} answers have arrived, not the one that was given", YIELD)
        assert set(heard) == {question}, broken(f"a node was asked {heard[0]!r}", QUESTIONED)

    @in_loop
    async def test_every_node_that_answers_is_heard(self) -> None:
        """Three nodes of one machine answer the same question."""
        async with (
            self.make_discovery().answering(self.make_address(), lambda _: b"one"),
            self.make_discovery().answering(self.make_address(), lambda _: b"two"),
            self.make_discovery().answering(self.make_address(), lambda _: b"three"),
        ):
            found = await self.collect(b"who?", 3)
        assert found == {b"one", b"two", b"three"}, broken(f"the answers are {sorted(found)}", YIELD)

    @in_loop
    async def test_node_without_an_answer_is_silent(self) -> None:
        """A node that gives no answer is not heard, and hears the next question."""
        async with self.make_discovery().answering(self.make_address(), lambda data: data if data == b"me" else None):
            found = await self.collect(b"you", 1, self.silence_s)
            assert not found, broken(f"it said {sorted(found)}", SILENT)
            assert await self.collect(b"me", 1) == {b"me"}, broken("later questions are not answered", UNTIL)

    @in_loop
    async def test_node_that_begins_to_answer_later_is_found(self) -> None:
        """The question is asked again until somebody answers."""
        asking = asyncio.create_task(self.collect(b"who?", 1))
        await asyncio.sleep(self.silence_s / 2)
        async with self.make_discovery().answering(self.make_address(), lambda _: b"me"):
            found = await asking
        assert found == {b"me"}, broken("a node that was late is not found", YIELD)

    @in_loop
    async def test_node_that_has_ended_is_silent_and_may_begin_again(self) -> None:
        """After the end of the context there is no answer; the same process may answer again."""
        discovery = self.make_discovery()
        for _ in range(2):
            async with discovery.answering(self.make_address(), lambda _: b"me"):
                assert await self.collect(b"who?", 1) == {b"me"}, broken("there is no answer", UNTIL)
            found = await self.collect(b"who?", 1, self.silence_s)
            assert not found, broken("a node that has ended answers", UNTIL)

    @in_loop
    async def test_long_answer_is_not_sent_and_long_question_is_an_error(self) -> None:
        """An answer beyond the limit is dropped, and a question beyond it raises ValueError."""
        async with self.make_discovery().answering(self.make_address(), lambda _: bytes(MOST_ANSWER_BYTES + 1)):
            found = await self.collect(b"who?", 1, self.silence_s)
            assert not found, broken(f"an answer of {max(map(len, found), default=0)} bytes has arrived", LENGTH)
        with expect(ValueError, "asking a question that is too long", QUESTION):
            await self.collect(bytes(MOST_QUESTION_BYTES + 1), 1, self.silence_s)

    @in_loop
    async def test_answers_are_those_to_the_own_question(self) -> None:
        """Two that ask at the same time hear the answers to their questions only."""
        async with self.make_discovery().answering(self.make_address(), lambda data: data):
            asked = [b"%d" % number for number in range(8)]
            found = await asyncio.gather(*(self.collect(each, 2, self.silence_s) for each in asked))
        assert list(found) == [{each} for each in asked], broken(f"the answers are {found}", OWN)

    @in_loop
    async def test_nothing_is_left_behind(self) -> None:
        """A call that is closed, or cancelled, and a context that has ended, leave no task."""
        before = asyncio.all_tasks()
        async with self.make_discovery().answering(self.make_address(), lambda _: b"me"):
            await self.collect(b"who?", 1)
            waiting = asyncio.create_task(self.collect(b"who?", 2))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        left = asyncio.all_tasks() - before
        assert not left, broken(f"{len(left)} tasks are left", UNTIL)

    async def collect(self, question: bytes, number: int, seconds: float | None = None) -> set[bytes]:
        """Ask, and return the answers once there are ``number`` different ones, or after ``seconds``."""
        found: set[bytes] = set()
        try:
            async with (
                asyncio.timeout(seconds or self.patience_s),
                aclosing(self.make_discovery().ask(question)) as answers,
            ):
                async for answer in answers:
                    found.add(answer)
                    if len(found) >= number:
                        break
        except TimeoutError:
            pass
        return found
