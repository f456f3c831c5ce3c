"""Checks of one client library against a running server; run by `benchmarks.clients`, each in its environment.

    python benchmarks/guests.py openai|litellm|langchain PLAN

PLAN is JSON: the address ``url`` of an open server, the address ``guarded`` of one that wants ``key`` and lets it ask
``rate`` times a minute, and the ``model``. Prints JSON: the version, and for each check what went wrong, if anything.
Nothing but the standard library and the client itself is imported here.
"""

# ruff: noqa: ANN401, PLR2004 -- what clients give back has any type, and checks are about numbers

from __future__ import annotations

import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
STORY = "Tell me a long story about a dragon and a fox."


@dataclass(frozen=True)
class Plan:
    """Where to ask."""

    url: str
    guarded: str
    key: str
    rate: int
    model: str


def turn(text: str) -> list[Any]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": text}]


class Guest:
    """What every client is checked for; a subclass says how it is asked."""

    package = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def ask(self, text: str = QUESTION, **fields: Any) -> Any:
        """Return the answers to a question, as the texts of all choices."""
        raise NotImplementedError

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """Yield the pieces of an answer."""
        raise NotImplementedError

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """Return the status and the field of the error that asking raises."""
        raise NotImplementedError

    def score(self) -> list[tuple[str, int]]:
        """Return each token of an answer, and how many were ranked with it."""
        raise NotImplementedError

    def retry(self, times: int) -> None:
        """Ask the guarded server, which says that it is too much; try so many times again."""
        raise NotImplementedError

    def check_whole(self) -> None:
        """The answer is the right one."""
        assert self.ask(temperature=0) == [ANSWER]

    def check_stream(self) -> None:
        """Streamed, it is the same, and comes in pieces."""
        pieces = list(self.stream(temperature=0))
        assert "".join(pieces) == ANSWER
        assert len([piece for piece in pieces if piece]) > 5, pieces

    def check_n(self) -> None:
        """Several answers are several."""
        assert len(set(self.ask(n=3, temperature=1, seed=5, max_tokens=8))) > 1

    def check_seed(self) -> None:
        """The same seed gives the same answer, another one another."""
        one, same, other = (self.ask(temperature=1, seed=seed, max_tokens=12) for seed in (1, 1, 2))
        assert one == same != other

    def check_stop(self) -> None:
        """The answer ends before a stop string."""
        assert self.ask(temperature=0, stop=[" Paris"]) == ["The capital of France is"]

    def check_logprobs(self) -> None:
        """Every token has its log-probability, and those in its place."""
        scored = self.score()
        assert "".join(token for token, _ in scored) == ANSWER
        assert all(count == 3 for _, count in scored), scored

    def check_bad_field(self) -> None:
        """What is wrong is a 400 that names the field."""
        assert self.catch(temperature=9) == (400, "temperature")

    def check_unknown_model(self) -> None:
        """Another model is a 404."""
        assert self.catch(model="other")[0] == 404

    def check_wrong_key(self) -> None:
        """A wrong key is a 401."""
        assert self.catch(base_url=self.plan.guarded, api_key="wrong")[0] == 401

    def check_cancel(self) -> None:
        """Leaving a stream stops its generation."""
        pieces = self.stream(STORY, max_tokens=2000)
        next(pieces)
        assert self.count_running() == 1
        pieces.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 5
        while self.count_running():
            assert time.monotonic() < deadline, "the server still generates"
            time.sleep(0.05)

    def check_retries(self) -> None:
        """A 429 is tried again when the server says, and then answered."""
        import openai

        try:
            for _ in range(3 * self.plan.rate):
                self.retry(0)
        except openai.RateLimitError:  # LangChain raises it as it is, LiteLLM a kind of it
            self.retry(3)
            return
        raise AssertionError("nothing was refused")

    def count_running(self) -> int:
        """Return how many requests the server works on."""
        with urllib.request.urlopen(self.plan.url.removesuffix("/v1") + "/metrics") as response:  # noqa: S310 -- ours
            lines = response.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("parallax_requests_running{")))


class OpenAIGuest(Guest):
    """The official client."""

    package = "openai"

    def client(self, **options: Any) -> Any:
        """Return a client."""
        import openai

        return openai.OpenAI(**{"base_url": self.plan.url, "api_key": "none", "max_retries": 0, **options})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `Guest.ask`."""
        answer = self.client().chat.completions.create(model=self.plan.model, messages=turn(text), **fields)
        return [choice.message.content for choice in answer.choices]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `Guest.stream`."""
        create = self.client().chat.completions.create
        with create(model=self.plan.model, messages=turn(text), stream=True, **fields) as events:
            for event in events:
                yield event.choices[0].delta.content or ""

    def catch(self, model: str = "", **fields: Any) -> tuple[int, str | None]:
        """See `Guest.catch`."""
        import openai

        options = {name: fields.pop(name) for name in ("base_url", "api_key") if name in fields}
        try:
            self.client(**options).chat.completions.create(
                model=model or self.plan.model, messages=turn(QUESTION), **fields
            )
        except openai.APIStatusError as error:
            return error.status_code, error.param
        return 200, None

    def score(self) -> list[tuple[str, int]]:
        """See `Guest.score`."""
        answer = self.client().chat.completions.create(
            model=self.plan.model, messages=turn(QUESTION), temperature=0, logprobs=True, top_logprobs=3
        )
        return [(entry.token, len(entry.top_logprobs)) for entry in answer.choices[0].logprobs.content]

    def retry(self, times: int) -> None:
        """See `Guest.retry`."""
        client = self.client(base_url=self.plan.guarded, api_key=self.plan.key, max_retries=times)
        client.chat.completions.create(model=self.plan.model, messages=turn("Hi"), max_tokens=1)

    def check_usage(self) -> None:
        """A stream ends with the token counts when asked."""
        options = {"include_usage": True}
        *_, last = self.client().chat.completions.create(
            model=self.plan.model, messages=turn(QUESTION), temperature=0, stream=True, stream_options=options
        )
        assert (last.choices, last.usage.completion_tokens) == ([], 8)

    def check_completions(self) -> None:
        """Text is continued and scored."""
        text = "The capital of France is"
        answer = self.client().completions.create(
            model=self.plan.model, prompt=[text, text], max_tokens=1, temperature=0, echo=True, logprobs=1
        )
        assert [choice.text for choice in answer.choices] == [f"{text} Paris"] * 2
        assert answer.choices[0].logprobs.tokens[-1] == " Paris"

    def check_models(self) -> None:
        """The model is listed."""
        assert [model.id for model in self.client().models.list()] == [self.plan.model]

    def check_timeout(self) -> None:
        """A client that gives up waiting stops its generation."""
        import openai

        try:
            self.client(timeout=1).chat.completions.create(model=self.plan.model, messages=turn(STORY), max_tokens=2000)
        except openai.APITimeoutError:
            time.sleep(1)
            assert self.count_running() == 0
            return
        raise AssertionError("it did not give up")


class LiteLLMGuest(Guest):
    """LiteLLM, with the server as an OpenAI-compatible endpoint."""

    package = "litellm"

    def complete(self, text: str = QUESTION, **fields: Any) -> Any:
        """Return what LiteLLM returns."""
        import litellm  # type: ignore[import-not-found]

        model = fields.pop("model", self.plan.model)
        usual = {"api_base": self.plan.url, "api_key": "none", "num_retries": 0}  # which outweighs "max_retries"
        return litellm.completion(model=f"openai/{model}", messages=turn(text), **{**usual, **fields})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `Guest.ask`."""
        return [choice.message.content for choice in self.complete(text, **fields).choices]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `Guest.stream`."""
        events = self.complete(text, stream=True, **fields)
        try:
            for event in events:
                yield event.choices[0].delta.content or ""
        finally:
            events.completion_stream.response.close()

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """See `Guest.catch`."""
        import openai

        if "base_url" in fields:
            fields["api_base"] = fields.pop("base_url")
        try:
            self.complete(**fields)
        except openai.APIStatusError as error:  # LiteLLM's errors are these, and keep the field in the words only
            param = next((name for name in fields if f"'{name}'" in str(error)), None)
            return error.status_code, param
        return 200, None

    def score(self) -> list[tuple[str, int]]:
        """See `Guest.score`."""
        answer = self.complete(temperature=0, logprobs=True, top_logprobs=3)
        return [(entry.token, len(entry.top_logprobs)) for entry in answer.choices[0].logprobs.content]

    def retry(self, times: int) -> None:
        """See `Guest.retry`."""
        guarded = {"api_base": self.plan.guarded, "api_key": self.plan.key}
        self.complete("Hi", max_tokens=1, **guarded, num_retries=times)


class LangChainGuest(Guest):
    """LangChain's chat model for OpenAI-compatible servers."""

    package = "langchain-openai"

    def model(self, **options: Any) -> Any:
        """Return a chat model."""
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

        usual = {"base_url": self.plan.url, "api_key": "none", "max_retries": 0, "model": self.plan.model}
        return ChatOpenAI(**{**usual, **options})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `Guest.ask`."""
        from langchain_core.messages import HumanMessage  # type: ignore[import-not-found]

        stop = fields.pop("stop", None)
        result = self.model(**fields).generate([[HumanMessage(text)]], stop=stop)
        return [generation.text for generation in result.generations[0]]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `Guest.stream`."""
        for piece in self.model(**fields).stream(text):
            yield str(piece.content)

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """See `Guest.catch`."""
        import openai

        try:
            self.model(**fields).invoke(QUESTION)
        except openai.APIStatusError as error:
            return error.status_code, error.param
        return 200, None

    def score(self) -> list[tuple[str, int]]:
        """See `Guest.score`."""
        message = self.model(temperature=0, logprobs=True, top_logprobs=3).invoke(QUESTION)
        content = message.response_metadata["logprobs"]["content"]
        return [(entry["token"], len(entry["top_logprobs"])) for entry in content]

    def retry(self, times: int) -> None:
        """See `Guest.retry`."""
        guarded = {"base_url": self.plan.guarded, "api_key": self.plan.key}
        self.model(**guarded, max_retries=times, max_tokens=1).invoke("Hi")


GUESTS: dict[str, type[Guest]] = {"openai": OpenAIGuest, "litellm": LiteLLMGuest, "langchain": LangChainGuest}


def run_check(check: Callable[[], None]) -> str:
    """Return what went wrong, or nothing."""
    try:
        check()
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is what is reported
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def main() -> None:
    """Run all checks of a client."""
    guest = GUESTS[sys.argv[1]](Plan(**json.loads(sys.argv[2])))
    names = [name for name in dir(guest) if name.startswith("check_")]
    found = {name.removeprefix("check_"): run_check(getattr(guest, name)) for name in names}
    print(json.dumps({"client": guest.package, "version": metadata.version(guest.package), "checks": found}))


if __name__ == "__main__":
    main()
