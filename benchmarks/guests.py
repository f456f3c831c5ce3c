"""Checks one client library against a running server; `benchmarks.clients` runs it in each library's environment.

    python benchmarks/guests.py openai|litellm|langchain PLAN

PLAN is JSON: the address ``url`` of an open server, the address ``guarded`` of one that requires ``key`` and allows it
``rate`` requests per minute, and the ``model``. Prints JSON: the version, and for each check its error, empty if it
passed. Imports nothing but the standard library and the client itself.
"""

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
    """The servers to check against."""

    url: str
    guarded: str
    key: str
    rate: int
    model: str


def turn(text: str) -> list[Any]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": text}]


class ClientChecks:
    """The checks of every client; a subclass implements the calls with one library."""

    package = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def ask(self, text: str = QUESTION, **fields: Any) -> Any:
        """Return the texts of all choices of an answer."""
        raise NotImplementedError

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """Yield the pieces of an answer."""
        raise NotImplementedError

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """Send a bad request, and return the HTTP status and the field of the error."""
        raise NotImplementedError

    def score(self) -> list[tuple[str, int]]:
        """Return each token of an answer with the number of its top log-probabilities."""
        raise NotImplementedError

    def retry(self, times: int) -> None:
        """Send a request to the guarded server, which may answer with a 429; retry up to ``times`` times."""
        raise NotImplementedError

    def check_whole(self) -> None:
        """The whole answer is right."""
        assert self.ask(temperature=0) == [ANSWER]

    def check_stream(self) -> None:
        """A streamed answer is the same, and arrives in several pieces."""
        pieces = list(self.stream(temperature=0))
        assert "".join(pieces) == ANSWER
        assert len([piece for piece in pieces if piece]) > 5, pieces

    def check_n(self) -> None:
        """The answers of a request with ``n`` differ."""
        assert len(set(self.ask(n=3, temperature=1, seed=5, max_tokens=8))) > 1

    def check_seed(self) -> None:
        """Equal seeds give equal answers, and different seeds different ones."""
        one, same, other = (self.ask(temperature=1, seed=seed, max_tokens=12) for seed in (1, 1, 2))
        assert one == same != other

    def check_stop(self) -> None:
        """The answer ends before a stop string."""
        assert self.ask(temperature=0, stop=[" Paris"]) == ["The capital of France is"]

    def check_logprobs(self) -> None:
        """Every token has its log-probability and the top alternatives."""
        scored = self.score()
        assert "".join(token for token, _ in scored) == ANSWER
        assert all(count == 3 for _, count in scored), scored

    def check_bad_field(self) -> None:
        """A wrong field is a 400 that names it."""
        assert self.catch(temperature=9) == (400, "temperature")

    def check_unknown_model(self) -> None:
        """An unknown model is a 404."""
        assert self.catch(model="other")[0] == 404

    def check_wrong_key(self) -> None:
        """A wrong key is a 401."""
        assert self.catch(base_url=self.plan.guarded, api_key="wrong")[0] == 401

    def check_cancel(self) -> None:
        """Closing a stream stops its generation."""
        pieces = self.stream(STORY, max_tokens=2000)
        next(pieces)
        assert self.count_running() == 1
        pieces.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 5
        while self.count_running():
            assert time.monotonic() < deadline, "the server still generates"
            time.sleep(0.05)

    def check_retries(self) -> None:
        """The client retries after a 429 when the server says, and then gets its answer."""
        import openai

        try:
            for _ in range(3 * self.plan.rate):
                self.retry(0)
        except openai.RateLimitError:  # LangChain raises it as it is, LiteLLM a subclass
            self.retry(3)
            return
        raise AssertionError("no request was refused")

    def count_running(self) -> int:
        """Return the number of running requests on the server."""
        with urllib.request.urlopen(self.plan.url.removesuffix("/v1") + "/metrics") as response:
            lines = response.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("parallax_requests_running{")))


class OpenAIChecks(ClientChecks):
    """Checks of the official client."""

    package = "openai"

    def client(self, **options: Any) -> Any:
        """Return a client."""
        import openai

        return openai.OpenAI(**{"base_url": self.plan.url, "api_key": "none", "max_retries": 0, **options})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `ClientChecks.ask`."""
        answer = self.client().chat.completions.create(model=self.plan.model, messages=turn(text), **fields)
        return [choice.message.content for choice in answer.choices]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `ClientChecks.stream`."""
        create = self.client().chat.completions.create
        with create(model=self.plan.model, messages=turn(text), stream=True, **fields) as events:
            for event in events:
                yield event.choices[0].delta.content or ""

    def catch(self, model: str = "", **fields: Any) -> tuple[int, str | None]:
        """See `ClientChecks.catch`."""
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
        """See `ClientChecks.score`."""
        answer = self.client().chat.completions.create(
            model=self.plan.model, messages=turn(QUESTION), temperature=0, logprobs=True, top_logprobs=3
        )
        return [(entry.token, len(entry.top_logprobs)) for entry in answer.choices[0].logprobs.content]

    def retry(self, times: int) -> None:
        """See `ClientChecks.retry`."""
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
        """A completion continues each prompt and returns log-probabilities."""
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
        """A client that times out stops its generation."""
        import openai

        try:
            self.client(timeout=1).chat.completions.create(model=self.plan.model, messages=turn(STORY), max_tokens=2000)
        except openai.APITimeoutError:
            time.sleep(1)
            assert self.count_running() == 0
            return
        raise AssertionError("the client did not time out")


class LiteLLMChecks(ClientChecks):
    """Checks of LiteLLM, with the server as an OpenAI-compatible endpoint."""

    package = "litellm"

    def complete(self, text: str = QUESTION, **fields: Any) -> Any:
        """Return what LiteLLM returns."""
        import litellm  # type: ignore[import-not-found]

        model = fields.pop("model", self.plan.model)
        usual = {"api_base": self.plan.url, "api_key": "none", "num_retries": 0}  # takes precedence over "max_retries"
        return litellm.completion(model=f"openai/{model}", messages=turn(text), **{**usual, **fields})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `ClientChecks.ask`."""
        return [choice.message.content for choice in self.complete(text, **fields).choices]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `ClientChecks.stream`."""
        events = self.complete(text, stream=True, **fields)
        try:
            for event in events:
                yield event.choices[0].delta.content or ""
        finally:
            if events.completion_stream is not None:  # it is not read to its end
                events.completion_stream.response.close()

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """See `ClientChecks.catch`."""
        import openai

        if "base_url" in fields:
            fields["api_base"] = fields.pop("base_url")
        try:
            self.complete(**fields)
        except openai.APIStatusError as error:  # LiteLLM raises subclasses, and names the field in the message only
            param = next((name for name in fields if f"'{name}'" in str(error)), None)
            return error.status_code, param
        return 200, None

    def score(self) -> list[tuple[str, int]]:
        """See `ClientChecks.score`."""
        answer = self.complete(temperature=0, logprobs=True, top_logprobs=3)
        return [(entry.token, len(entry.top_logprobs)) for entry in answer.choices[0].logprobs.content]

    def retry(self, times: int) -> None:
        """See `ClientChecks.retry`."""
        guarded = {"api_base": self.plan.guarded, "api_key": self.plan.key}
        self.complete("Hi", max_tokens=1, **guarded, num_retries=times)


class LangChainChecks(ClientChecks):
    """Checks of LangChain's chat model for OpenAI-compatible servers."""

    package = "langchain-openai"

    def model(self, **options: Any) -> Any:
        """Return a chat model."""
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

        usual = {"base_url": self.plan.url, "api_key": "none", "max_retries": 0, "model": self.plan.model}
        return ChatOpenAI(**{**usual, **options})

    def ask(self, text: str = QUESTION, **fields: Any) -> list[str]:
        """See `ClientChecks.ask`."""
        from langchain_core.messages import HumanMessage  # type: ignore[import-not-found]

        stop = fields.pop("stop", None)
        result = self.model(**fields).generate([[HumanMessage(text)]], stop=stop)
        return [generation.text for generation in result.generations[0]]

    def stream(self, text: str = QUESTION, **fields: Any) -> Iterator[str]:
        """See `ClientChecks.stream`."""
        for piece in self.model(**fields).stream(text):
            yield str(piece.content)

    def catch(self, **fields: Any) -> tuple[int, str | None]:
        """See `ClientChecks.catch`."""
        import openai

        try:
            self.model(**fields).invoke(QUESTION)
        except openai.APIStatusError as error:
            return error.status_code, error.param
        return 200, None

    def score(self) -> list[tuple[str, int]]:
        """See `ClientChecks.score`."""
        message = self.model(temperature=0, logprobs=True, top_logprobs=3).invoke(QUESTION)
        content = message.response_metadata["logprobs"]["content"]
        return [(entry["token"], len(entry["top_logprobs"])) for entry in content]

    def retry(self, times: int) -> None:
        """See `ClientChecks.retry`."""
        guarded = {"base_url": self.plan.guarded, "api_key": self.plan.key}
        self.model(**guarded, max_retries=times, max_tokens=1).invoke("Hi")


CHECKS: dict[str, type[ClientChecks]] = {"openai": OpenAIChecks, "litellm": LiteLLMChecks, "langchain": LangChainChecks}


def run_check(check: Callable[[], None]) -> str:
    """Run a check, and return its error, empty if it passed."""
    try:
        check()
    except Exception as error:  # noqa: BLE001 -- every error is reported
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def main() -> None:
    """Run all checks of a client, and print the report."""
    checks = CHECKS[sys.argv[1]](Plan(**json.loads(sys.argv[2])))
    names = [name for name in dir(checks) if name.startswith("check_")]
    found = {name.removeprefix("check_"): run_check(getattr(checks, name)) for name in names}
    print(json.dumps({"client": checks.package, "version": metadata.version(checks.package), "checks": found}))


if __name__ == "__main__":
    main()
