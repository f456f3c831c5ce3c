"""The kit for engines: tests their life (`EngineLife`), end (`EngineEnds`) and answers."""

from __future__ import annotations

import asyncio

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.sample import Sampling
from parallax_core.testing.ends import EngineEnds
from parallax_core.testing.life import EngineLife
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.replica import Prompt, Reply
from parallax_core.testing.runner import in_loop

INVALID = "if it can never be served"
MOST = "The most tokens to generate"
COUNTS = "How a stream ended, and its usage"
TEXT = "An item of a stream: new text of one answer"
STOP_IDS = "Token ids that end the answer; they count as output and have no text"
STOPS = "Strings that end the answer; the text ends before them"
TIMEOUT = "Seconds from arrival after which the request ends with an error"
ANSWERS = "The number of answers, each with its own draws; ``max_tokens`` applies to each"
OF_ALL = "Summed over all answers"
SEED = "the same seed gives the same tokens, alone or in a batch"
LOGPROBS = "Return the log-probability of each output token, and of this many best tokens"
PROMPT_LOGPROBS = "The same for the prompt tokens after the first"
ONE_EACH = "One for each of ``tokens``, if requested"

MANY = 12
CHOICES = 3
TOP = 2
NO_TIME_S = 1e-6


class EngineConformance(EngineLife, EngineEnds):
    """Holds an engine to `parallax_core.contracts.engine`.

    Subclass it in a test module under a name that begins with ``Test``, and give ``prompts``, ``context``,
    ``make_engine``, ``make_broken_engine`` and ``decode``.
    """

    @in_loop
    async def test_answer_has_as_many_tokens_as_asked_for(self) -> None:
        """``max_tokens`` tokens, the reason ``length``, and counts that are right."""
        async with self.running() as engine:
            for prompt in self.prompts:
                for length in (1, 2, self.length):
                    reply = await self.ask(engine, prompt, max_tokens=length)
                    given = len(reply.tokens())
                    assert given == length, broken(f"{length} tokens were requested, and {given} were returned", MOST)
                    self._check_counts(reply, prompt, "length")

    @in_loop
    async def test_text_is_that_of_the_tokens(self) -> None:
        """The pieces of text together are the tokens decoded."""
        async with self.running() as engine:
            for prompt in self.prompts:
                reply = await self.ask(engine, prompt)
                text = self.decode(reply.tokens())
                fault = f"the tokens {reply.tokens()} came with the text {reply.text()!r} instead of {text!r}"
                assert reply.text() == text, broken(fault, TEXT)

    @in_loop
    async def test_stop_id_ends_the_text(self) -> None:
        """The text ends with the first of ``stop_ids``, which counts and has no text."""
        async with self.running() as engine:
            tokens = (await self.ask(engine)).tokens()
            last = tokens[self.length // 2]
            expected = tokens[: tokens.index(last) + 1]
            reply = await self.ask(engine, stop_ids=frozenset({last}))
            assert reply.tokens() == expected, broken(
                f"with stop id {last}, {reply.tokens()} came instead of {expected}", STOP_IDS
            )
            text = self.decode(expected[:-1])
            assert reply.text() == text, broken(
                f"with stop id {last}, the text is {reply.text()!r} instead of {text!r}", STOP_IDS
            )
            self._check_counts(reply, self.prompts[0], "stop")

    @in_loop
    async def test_stop_string_ends_the_text_before_it(self) -> None:
        """The text ends before the first of ``stop``, wherever the borders of tokens lie."""
        async with self.running() as engine:
            text = (await self.ask(engine)).text()
            for start, stop in ((len(text) // 2, len(text) // 2 + 1), (len(text) // 3, len(text) * 2 // 3)):
                word = text[start:stop]
                reply = await self.ask(engine, stop=(word, "\0never"))
                expected = text[: text.index(word)]
                fault = f"with stop string {word!r}, the text is {reply.text()!r} instead of {expected!r}"
                assert reply.text() == expected, broken(fault, STOPS)
                self._check_counts(reply, self.prompts[0], "stop")

    @in_loop
    async def test_request_that_takes_too_long_ends_with_an_error(self) -> None:
        """The stream ends with the reason ``timeout``, in words, and the engine goes on."""
        async with self.running() as engine:
            finish = (await self.ask(engine, max_tokens=self.long_length, timeout_s=NO_TIME_S)).finish
            fault = f"a request with a timeout of {NO_TIME_S:g} s ended with {finish}"
            assert finish.reason == "timeout", broken(fault, TIMEOUT)
            assert finish.message, broken(fault, "What happened, for the client")
            await self.check_well(engine)

    @in_loop
    async def test_invalid_requests_are_refused_and_do_no_harm(self) -> None:
        """What can never be served raises InvalidRequest at once, and the engine goes on as before."""
        prompt = self.prompts[0]
        requests = {
            "an empty prompt": self.make_request(()),
            "a prompt longer than the context": self.make_request(prompt[:1] * self.context),
            "more tokens than the context holds": self.make_request(max_tokens=self.context),
            "an adapter that does not exist": self.make_request(adapter="kit-no-such-adapter"),
        }
        async with self.running() as engine:
            for what, request in requests.items():
                with expect(InvalidRequest, f"submitting {what}", INVALID):
                    engine.submit(request)
                await self.check_well(engine)

    @in_loop
    async def test_several_answers_are_each_whole(self) -> None:
        """With ``n``, every answer has its tokens and ends once; without the ability, more than one is refused."""
        async with self.running() as engine:
            if not self.has_choices:
                with expect(InvalidRequest, "asking for several answers", INVALID):
                    engine.submit(self.make_request(n=CHOICES))
                return
            reply = await self.ask(engine, n=CHOICES, sampling=Sampling(seed=1))
            lengths = [len(reply.tokens(index)) for index in range(CHOICES)]
            fault = f"{CHOICES} answers of {self.length} tokens were requested, but their lengths are {lengths}"
            assert lengths == [self.length] * CHOICES, broken(fault, ANSWERS)
            self._check_counts(reply, self.prompts[0], "length")
            if self.seed != "none":
                first = (await self.ask(engine, sampling=Sampling(seed=1))).tokens()
                others = [reply.tokens(index) for index in range(CHOICES)]
                assert others[0] == first, broken(
                    f"the first of several answers is {others[0]}, but alone it is {first}", SEED
                )
                assert others != [first] * CHOICES, broken("several answers are all the same", ANSWERS)

    @in_loop
    async def test_together_equals_alone(self) -> None:
        """Many requests at once are answered as each is alone, also when a prompt comes again."""
        async with self.running() as engine:
            for options in ({}, {"sampling": Sampling(seed=3, top_p=0.9)}):
                if options and self.seed == "none":
                    continue
                prompts = [self.prompts[number % len(self.prompts)] for number in range(MANY)]
                alone = {prompt: (await self.ask(engine, prompt, **options)).tokens() for prompt in self.prompts}
                replies = await asyncio.gather(*(self.ask(engine, prompt, **options) for prompt in prompts))
                for prompt, reply in zip(prompts, replies, strict=True):
                    fault = f"{prompt} is answered with {reply.tokens()} among others, and alone with {alone[prompt]}"
                    assert reply.tokens() == alone[prompt], broken(fault, SEED)
                    self._check_counts(reply, prompt, "length")

    @in_loop
    async def test_seeds_decide_the_draws(self) -> None:
        """The same seed gives the same tokens; among several seeds, not all are alike."""
        async with self.running() as engine:
            drawn = [(await self.ask(engine, sampling=Sampling(seed=seed))).tokens() for seed in range(MANY)]
            alike = all(tokens == drawn[0] for tokens in drawn)
            assert not alike, broken(f"{MANY} seeds all give {drawn[0]}", "The sampling parameters of a sequence")
            if self.seed == "none":
                return
            again = [(await self.ask(engine, sampling=Sampling(seed=seed))).tokens() for seed in range(MANY)]
            assert again == drawn, broken(f"the same seeds give {again[:2]}, and gave {drawn[:2]}", SEED)

    @in_loop
    async def test_logprobs_come_with_every_token(self) -> None:
        """One for each token, of that token and as many best ones as asked for; or the request is refused."""
        async with self.running() as engine:
            if not self.has_logprobs:
                await self._check_refused(engine)
                return
            reply = await self.ask(engine, logprobs=TOP)
            for delta in reply.deltas:
                tokens = [entry.token for entry in delta.logprobs]
                assert tokens == list(delta.tokens), broken(
                    f"the log-probabilities of the tokens {delta.tokens} are for {tokens}", ONE_EACH
                )
                for entry in delta.logprobs:
                    is_sane = len(entry.top) == TOP and entry.logprob <= 0 and entry.top[0][1] >= entry.top[1][1]
                    assert is_sane, broken(f"with {TOP} best tokens requested, the entry is {entry}", LOGPROBS)
            plain = await self.ask(engine)
            is_plain = not any(delta.logprobs or delta.prompt_logprobs for delta in plain.deltas)
            assert is_plain, broken("there are log-probabilities, although none were requested", LOGPROBS)
            assert plain.tokens() == reply.tokens(), broken("asking for log-probabilities changes the answer", LOGPROBS)

    @in_loop
    async def test_logprobs_of_the_prompt_come_first(self) -> None:
        """On the first delta, one for each token of the prompt after the first."""
        async with self.running() as engine:
            for prompt in self.prompts if self.has_logprobs else ():
                first, *rest = (await self.ask(engine, prompt, prompt_logprobs=0)).deltas
                tokens = tuple(entry.token for entry in first.prompt_logprobs)
                assert tokens == prompt[1:], broken(
                    f"the log-probabilities of the prompt {prompt} are for {tokens}", PROMPT_LOGPROBS
                )
                is_once = not any(delta.prompt_logprobs for delta in rest)
                assert is_once, broken(
                    "the log-probabilities of the prompt came again later", "On the first delta, if requested"
                )

    async def _check_refused(self, engine: Engine) -> None:
        for request in (self.make_request(logprobs=TOP), self.make_request(prompt_logprobs=TOP)):
            with expect(InvalidRequest, "asking for log-probabilities", INVALID):
                engine.submit(request)
        await self.check_well(engine)

    def _check_counts(self, reply: Reply, prompt: Prompt, reason: str) -> None:
        finish = reply.finish
        given = sum(len(delta.tokens) for delta in reply.deltas)
        assert finish.reason == reason, broken(
            f"a stream ended with {finish}, but the reason should be {reason!r}", COUNTS
        )
        assert finish.output_tokens == given, broken(
            f"{given} tokens were returned, but {finish} has another count", OF_ALL
        )
        is_right = finish.prompt_tokens == len(prompt) and 0 <= finish.cached_tokens <= len(prompt)
        assert is_right, broken(f"the prompt has {len(prompt)} tokens, but {finish} has another count", COUNTS)
