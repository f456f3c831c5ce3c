"""Checks one client library against a running server; `tests.clients` runs it in each library's environment.

    python -m tests.clients.checks NAME PLAN

PLAN is JSON: the address ``url`` of an open server, the address ``guarded`` of one that requires ``key`` and allows it
``rate`` requests per minute, and the ``model``. Prints JSON: the version, and for each check its error, empty if it
passed. The model is too small to choose tools by itself: the checks force a call or an object, and the grammar of the
server makes both valid. What a library cannot do it does not implement, and is not checked.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
STORY = "Tell me a long story about a dragon and a fox."
TOOL = "capital_of"
ASK_TOOL = "Use the tool to find the capital of France."
ASK_CITY = "Which city is the capital of France? Answer as JSON."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"country": {"enum": ["France", "Italy"]}},
    "required": ["country"],
    "additionalProperties": False,
}
"""The schema of the tool's arguments."""
CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "City", "strict": True, "schema": CITY_SCHEMA}}
FUNCTION = {"type": "function", "function": {"name": TOOL, "description": "Find a capital.", "parameters": SCHEMA}}
COMMON: dict[str, Any] = {"temperature": 0, "max_tokens": 200}


class City(BaseModel):
    """What an answer of a fixed form has to be."""

    city: Literal["Paris", "Rome"]
    is_capital: bool


class Country(BaseModel):
    """Find a capital."""

    country: Literal["France", "Italy"]


@dataclass(frozen=True)
class Plan:
    """The servers to check against."""

    url: str
    guarded: str
    key: str
    rate: int
    model: str


@dataclass
class Reply:
    """What a library gives: texts of all choices, calls of tools, and the status and field of an error."""

    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    error: tuple[int, str | None] = (0, None)


def read_calls(calls: Any) -> list[tuple[str, Any]]:
    """Return the calls of a message in the form of chat completions."""
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls or ()]


class Checks:
    """The checks of every library; a subclass implements ``ask`` with one, and what else the library does."""

    package = ""
    can: frozenset[str] = frozenset()
    """Beside whole answers: stream, call, object, both (tools and a form in one request), sample, errors, retry."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def ask(self, text: str, **fields: Any) -> Reply:
        """Send a request in the words of chat completions, greedy unless ``fields`` say otherwise."""
        raise NotImplementedError

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """Yield the pieces of an answer."""
        raise NotImplementedError

    def check_whole(self) -> None:
        """The whole answer is right."""
        assert self.ask(QUESTION).texts == [ANSWER]

    def check_stream(self) -> None:
        """A streamed answer is the same, and arrives in several pieces."""
        pieces = [piece for piece in self.stream(QUESTION) if piece]
        assert "".join(pieces) == ANSWER
        assert len(pieces) > 1, pieces

    def check_call(self) -> None:
        """A forced call names the tool, with arguments that follow its schema."""
        [(name, arguments)] = self.ask(ASK_TOOL, tools=[FUNCTION], tool_choice="required").calls[:1]
        assert name == TOOL
        assert arguments in ({"country": "France"}, {"country": "Italy"}), arguments

    def check_object(self) -> None:
        """An answer of a fixed form is valid."""
        City.model_validate_json(self.ask(ASK_CITY, response_format=FORMAT).texts[0])

    def check_both(self) -> None:
        """The answer calls a tool, or has the form: an agent that ends in a typed answer sends such requests."""
        for text in (ASK_CITY, ASK_TOOL):
            reply = self.ask(text, tools=[FUNCTION], response_format=FORMAT)
            if not reply.calls:
                City.model_validate_json(reply.texts[0])
            assert all(name == TOOL for name, _ in reply.calls)

    def check_sample(self) -> None:
        """Choices differ, seeds repeat, and a stop string ends an answer."""
        assert len(set(self.ask(QUESTION, n=3, temperature=1, seed=5, max_tokens=8).texts)) > 1
        one, same, other = (self.ask(QUESTION, temperature=1, seed=seed, max_tokens=12).texts for seed in (1, 1, 2))
        assert one == same != other
        assert self.ask(QUESTION, stop=[" Paris"]).texts == ["The capital of France is"]

    def check_errors(self) -> None:
        """A wrong field is a 400 that names it, an unknown model a 404, a wrong key a 401."""
        status, param = self.ask(QUESTION, temperature=9).error
        assert (status, "temperature" in (param or "")) == (400, True), (status, param)
        assert self.ask(QUESTION, model="other").error[0] == 404
        assert self.ask(QUESTION, base_url=self.plan.guarded, api_key="wrong").error[0] == 401

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

    def check_retry(self) -> None:
        """The client retries after a 429 when the server says, and then gets its answer."""
        guarded = {"base_url": self.plan.guarded, "api_key": self.plan.key, "max_tokens": 1}
        for _ in range(3 * self.plan.rate):
            if self.ask("Hi", **guarded).error[0] == 429:
                assert self.ask("Hi", **guarded, max_retries=3).texts
                return
        raise AssertionError("no request was refused")

    def count_running(self) -> int:
        """Return the number of running requests on the server."""
        with urllib.request.urlopen(self.plan.url.removesuffix("/v1") + "/metrics") as response:
            lines = response.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("parallax_requests_running{")))


ALL = frozenset({"stream", "call", "object", "both", "sample", "errors", "cancel", "retry"})


class OpenAI(Checks):
    """OpenAI's official client."""

    package, can = "openai", ALL

    def client(self, fields: dict[str, Any]) -> Any:
        """Return a client, with its own settings out of ``fields``."""
        import openai

        usual = {"base_url": self.plan.url, "api_key": "none", "max_retries": 0}
        return openai.OpenAI(**{name: fields.pop(name, value) for name, value in usual.items()})

    def create(self, text: str, fields: dict[str, Any]) -> Any:
        """Return a chat completion."""
        create = self.client(fields).chat.completions.create
        return create(messages=turn(text), **{"model": self.plan.model, **COMMON, **fields})

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        import openai

        try:
            choices = self.create(text, fields).choices
        except openai.APIStatusError as error:  # LiteLLM and LangChain raise it, or subclasses
            return Reply(error=(error.status_code, error.param or str(error)))
        calls = read_calls(choices[0].message.tool_calls)
        return Reply([choice.message.content for choice in choices], calls)

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        with self.create(text, {"stream": True, **fields}) as events:
            for event in events:
                yield event.choices[0].delta.content or ""

    def check_logprobs(self) -> None:
        """Every token has its log-probability and the top alternatives, and usage is told at the end of a stream."""
        answer = self.create(QUESTION, {"logprobs": True, "top_logprobs": 3}).choices[0].logprobs.content
        assert "".join(entry.token for entry in answer) == ANSWER
        assert all(len(entry.top_logprobs) == 3 for entry in answer)
        *_, last = self.create(QUESTION, {"stream": True, "stream_options": {"include_usage": True}})
        assert (last.choices, last.usage.completion_tokens) == ([], 8)

    def check_completions(self) -> None:
        """A completion continues each prompt, and the model is listed."""
        text, client = "The capital of France is", self.client({})
        fields = {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        answer = client.completions.create(model=self.plan.model, prompt=[text, text], **fields)
        assert [choice.text for choice in answer.choices] == [f"{text} Paris"] * 2
        assert answer.choices[0].logprobs.tokens[-1] == " Paris"
        assert [model.id for model in client.models.list()] == [self.plan.model]

    def check_timeout(self) -> None:
        """A client that times out stops its generation."""
        import openai

        try:
            self.client({}).with_options(timeout=1).chat.completions.create(
                model=self.plan.model, messages=turn(STORY), max_tokens=2000
            )
        except openai.APITimeoutError:
            time.sleep(1)
            assert self.count_running() == 0
            return
        raise AssertionError("the client did not time out")

    def check_streamed_call(self) -> None:
        """The arguments of a streamed call arrive in pieces, after its id and name; its result is answered."""
        events = list(self.create(ASK_TOOL, {"tools": [FUNCTION], "tool_choice": "required", "stream": True}))
        calls = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
        assert (calls[0].function.name, bool(calls[0].id)) == (TOOL, True)
        assert json.loads("".join(call.function.arguments or "" for call in calls))["country"] in {"France", "Italy"}
        assert events[-1].choices[0].finish_reason == "tool_calls"
        call = {"id": "call00001", "type": "function", "function": {"name": TOOL, "arguments": '{"country":"France"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        messages = [*turn(ASK_TOOL), said, {"role": "tool", "tool_call_id": "call00001", "content": "Paris"}]
        create = self.client({}).chat.completions.create
        assert (
            create(model=self.plan.model, messages=messages, tools=[FUNCTION], max_tokens=20).choices[0].message.content
        )


class Responses(OpenAI):
    """OpenAI's official client, over Responses."""

    can = frozenset({"stream", "call", "object", "both"})

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        told: dict[str, Any] = {"model": self.plan.model, "input": text, "temperature": 0, "max_output_tokens": 200}
        if "tools" in fields:
            told["tools"] = [{"type": "function", **FUNCTION["function"], "strict": True}]  # type: ignore[dict-item]
            told["tool_choice"] = fields.get("tool_choice", "auto")
        if "response_format" in fields:
            told["text"] = {"format": {"type": "json_schema", **FORMAT["json_schema"]}}  # type: ignore[dict-item]
        answer = self.client({}).responses.create(**told)
        calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
        return Reply([answer.output_text], calls)

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        for event in self.client(fields).responses.create(
            model=self.plan.model, input=text, temperature=0, stream=True
        ):
            if event.type == "response.output_text.delta":
                yield event.delta


class LiteLLM(OpenAI):
    """LiteLLM, with the server as an OpenAI-compatible endpoint."""

    package = "litellm"

    def create(self, text: str, fields: dict[str, Any]) -> Any:
        """Return what LiteLLM returns."""
        import litellm  # type: ignore[import-not-found]

        model, base = fields.pop("model", self.plan.model), fields.pop("base_url", self.plan.url)
        usual = {"api_base": base, "api_key": "none", "num_retries": fields.pop("max_retries", 0), **COMMON}
        return litellm.completion(model=f"openai/{model}", messages=turn(text), **{**usual, **fields})

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        events = self.create(text, {"stream": True, **fields})
        try:
            for event in events:
                yield event.choices[0].delta.content or ""
        finally:
            if events.completion_stream is not None:  # it is not read to its end
                events.completion_stream.response.close()

    check_completions = check_timeout = check_streamed_call = check_logprobs = None  # type: ignore[assignment]


class LangChain(Checks):
    """LangChain's chat model for OpenAI-compatible servers."""

    package, can = "langchain-openai", ALL - {"both"}

    def model(self, fields: dict[str, Any]) -> Any:
        """Return a chat model."""
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

        usual = {"base_url": self.plan.url, "api_key": "none", "max_retries": 0, "model": self.plan.model}
        bound = {name: fields.pop(name) for name in ("tools", "tool_choice", "response_format") if name in fields}
        model = ChatOpenAI(**{**usual, **COMMON, **fields})
        return model.bind(**bound) if bound else model

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        import openai
        from langchain_core.messages import HumanMessage  # type: ignore[import-not-found]

        stop = fields.pop("stop", None)
        try:
            model = self.model(fields)
            if hasattr(model, "generate"):
                found = [each.message for each in model.generate([[HumanMessage(text)]], stop=stop).generations[0]]
            else:
                found = [model.invoke(text)]
        except openai.APIStatusError as error:
            return Reply(error=(error.status_code, error.param))
        return Reply([each.content for each in found], [(call["name"], call["args"]) for call in found[0].tool_calls])

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        for piece in self.model(fields).stream(text):
            yield str(piece.content)


class Anthropic(Checks):
    """Anthropic's official client."""

    package, can = "anthropic", frozenset({"stream", "call", "both", "errors"})

    def client(self, fields: dict[str, Any]) -> Any:
        """Return a client, with its own settings out of ``fields``."""
        import anthropic

        base = fields.pop("base_url", self.plan.url).removesuffix("/v1")
        return anthropic.Anthropic(base_url=base, api_key=fields.pop("api_key", "none"), max_retries=0)

    def describe(self, text: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a message."""
        more: dict[str, Any] = {"extra_body": {"temperature": fields.pop("temperature", 0)}}
        if fields.pop("tools", None):
            more["tools"] = [{"name": TOOL, "description": "Find a capital.", "input_schema": SCHEMA}]
        if fields.pop("tool_choice", None):
            more["tool_choice"] = {"type": "tool", "name": TOOL}
        if fields.pop("response_format", None):
            more["output_config"] = {"format": {"type": "json_schema", "schema": CITY_SCHEMA}}
        return {"model": self.plan.model, "messages": turn(text), "max_tokens": 200, **more, **fields}

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        import anthropic

        client = self.client(fields)
        try:
            message = client.messages.create(**self.describe(text, fields))
        except anthropic.APIStatusError as error:
            return Reply(error=(error.status_code, error.message))
        calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
        return Reply(["".join(block.text for block in message.content if block.type == "text")], calls)

    def stream(self, text: str, **fields: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        with self.client(fields).messages.stream(**self.describe(text, fields)) as events:
            yield from events.text_stream

    def check_count(self) -> None:
        """The tokens of a prompt are counted as an answer reports them."""
        client, fields = self.client({}), self.describe(QUESTION, {})
        usage = client.messages.create(**fields).usage
        counted = client.messages.count_tokens(model=self.plan.model, messages=fields["messages"])
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert counted.input_tokens == usage.input_tokens + cached


class PydanticAI(Checks):
    """Pydantic AI."""

    package, can = "pydantic-ai-slim", frozenset({"stream", "call", "object", "both"})

    def agent(self, **options: Any) -> Any:
        """Return an agent."""
        from pydantic_ai import Agent  # type: ignore[import-not-found]
        from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
        from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

        model = OpenAIChatModel(self.plan.model, provider=OpenAIProvider(base_url=self.plan.url, api_key="none"))
        return Agent(model, model_settings=dict(COMMON), **options)

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        from pydantic_ai import NativeOutput, ToolOutput, UsageLimitExceeded, UsageLimits

        if "tool_choice" in fields:
            output = self.agent(output_type=ToolOutput(Country, name=TOOL)).run_sync(text).output
            return Reply(calls=[(TOOL, output.model_dump())])
        options: dict[str, Any] = {"output_type": NativeOutput(City)} if "response_format" in fields else {}
        options |= {"tools": [find_capital]} if "tools" in fields else {}
        try:
            output = self.agent(**options).run_sync(text, usage_limits=UsageLimits(request_limit=3)).output
        except UsageLimitExceeded:
            return Reply(calls=[(TOOL, {})])
        return Reply([output.model_dump_json() if isinstance(output, BaseModel) else str(output)])

    def stream(self, text: str, **_: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        yield from self.agent().run_stream_sync(text).stream_text(delta=True, debounce_by=None)


def find_capital(country: Literal["France", "Italy"]) -> str:
    """Find a capital.

    Args:
        country: France or Italy.
    """
    return {"France": "Paris", "Italy": "Rome"}[country]


class OpenAIAgents(Checks):
    """OpenAI's Agents SDK, over chat completions."""

    package, can = "openai-agents", frozenset({"stream", "call", "object", "both"})

    def agent(self, tool_choice: str | None = None, **options: Any) -> Any:
        """Return an agent."""
        import agents  # type: ignore[import-not-found]
        import openai

        agents.set_tracing_disabled(disabled=True)
        client = openai.AsyncOpenAI(base_url=self.plan.url, api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if self.plan.key.endswith("agents") else agents.OpenAIResponsesModel
        settings = agents.ModelSettings(**COMMON, tool_choice=tool_choice)
        model = kind(model=self.plan.model, openai_client=client)
        return agents.Agent(name="checker", model=model, model_settings=settings, **options)

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        import agents

        called: list[tuple[str, Any]] = []

        def capital_of(country: Literal["France", "Italy"]) -> str:
            """Find a capital."""
            called.append((TOOL, {"country": country}))
            return find_capital(country)

        options: dict[str, Any] = {"output_type": City} if "response_format" in fields else {}
        options |= {"tools": [agents.function_tool(capital_of)]} if "tools" in fields else {}
        if "tool_choice" in fields:
            options |= {"tool_choice": "required", "tool_use_behavior": "stop_on_first_tool"}
        try:
            output = agents.Runner.run_sync(self.agent(**options), text, max_turns=3).final_output
        except agents.MaxTurnsExceeded:
            return Reply(calls=called)
        return Reply([output.model_dump_json() if isinstance(output, BaseModel) else str(output)], called)

    def stream(self, text: str, **_: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        import agents

        async def read() -> list[str]:
            events = agents.Runner.run_streamed(self.agent(), text).stream_events()
            data = [event.data async for event in events if event.type == "raw_response_event"]
            return [each.delta for each in data if each.type == "response.output_text.delta"]

        yield from asyncio.run(read())


class Instructor(Checks):
    """Instructor, whose typed answers are calls, and which sends an output schema beside them."""

    package = "instructor"

    def ask(self, text: str, **_: Any) -> Reply:
        """See `Checks.ask`."""
        import instructor  # type: ignore[import-not-found]
        import openai

        client = openai.OpenAI(base_url=self.plan.url, api_key="none", max_retries=0)
        usual = {"model": self.plan.model, "response_model": City, "messages": turn(text), "max_retries": 0}
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
            assert isinstance(instructor.from_openai(client, mode=mode).create(**usual, **COMMON), City)
        responses = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
        return Reply([responses.create(**usual, temperature=0, max_output_tokens=200).model_dump_json()])

    def check_whole(self) -> None:
        """Every mode gives a valid object."""
        City.model_validate_json(self.ask(ASK_CITY).texts[0])


class LlamaIndex(Checks):
    """LlamaIndex."""

    package, can = "llama-index-core", frozenset({"both"})

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        from llama_index.core.base.llms.types import ChatMessage  # type: ignore[import-not-found]
        from llama_index.core.tools import FunctionTool  # type: ignore[import-not-found]
        from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-not-found]

        options = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "context_window": 2048}
        model = OpenAILike(model=self.plan.model, api_base=self.plan.url, api_key="none", **options, **COMMON)
        if "tools" not in fields:
            return Reply([model.chat([ChatMessage(role="user", content=text)]).message.content])
        tool = FunctionTool.from_defaults(find_capital, name=TOOL)
        answer = model.chat_with_tools([tool], user_msg=text, response_format=FORMAT)
        calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        return Reply([answer.message.content], [(call.tool_name, call.tool_kwargs) for call in calls])


class Smolagents(Checks):
    """smolagents."""

    package, can = "smolagents", frozenset({"both"})

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        from smolagents import ChatMessage, OpenAIServerModel, tool  # type: ignore[import-not-found]

        model = OpenAIServerModel(self.plan.model, api_base=self.plan.url, api_key="none", **COMMON)
        find_capital.__name__ = TOOL
        more = {"tools_to_call_from": [tool(find_capital)], "response_format": FORMAT} if "tools" in fields else {}
        answer = model.generate([ChatMessage(role="user", content=[{"type": "text", "text": text}])], **more)
        return Reply([answer.content], [(call.function.name, {}) for call in answer.tool_calls or ()])


class Ollama(Checks):
    """Ollama's official client, with the plugin for its API; it cannot force calls."""

    package, can = "ollama", frozenset({"stream", "object", "both"})

    def chat(self, text: str, **fields: Any) -> Any:
        """Return a greedy answer."""
        import ollama  # type: ignore[import-not-found]

        client = ollama.Client(self.plan.url.removesuffix("/v1"))
        more = {"format": CITY_SCHEMA} if fields.pop("response_format", None) else {}
        told = {"model": self.plan.model, "messages": turn(text), "options": {"temperature": 0, "num_predict": 200}}
        return client.chat(**{**told, **more, **fields})

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        message = self.chat(text, **fields).message
        calls = [(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or ()]
        return Reply([message.content], calls)

    def stream(self, text: str, **_: Any) -> Iterator[str]:
        """See `Checks.stream`."""
        for part in self.chat(text, stream=True):
            yield part.message.content

    def check_refusals(self) -> None:
        """Unknown models and unsupported fields are errors with their status; the model is listed."""
        import ollama

        assert [model.model for model in ollama.Client(self.plan.url.removesuffix("/v1")).list().models] == [
            self.plan.model
        ]
        for fields, status in (({"model": "other"}, 404), ({"options": {"mirostat": 1}}, 400)):
            try:
                self.chat(QUESTION, **fields)
            except ollama.ResponseError as error:
                found = error.status_code
            else:
                found = 200
            assert found == status, fields


class Zed(Checks):
    """What the editor Zed sends: an agent's turn, streamed, as in `open_ai.rs` of its sources."""

    package, can = "pydantic", frozenset({"both"})
    more: ClassVar[dict[str, Any]] = {
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "prompt_cache_key": "thread-1",
    }
    more |= {"stream_options": {"include_usage": True}, "max_completion_tokens": 200}

    def ask(self, text: str, **fields: Any) -> Reply:
        """See `Checks.ask`."""
        messages = [{"role": "system", "content": "You are an agent."}, *turn(text)]
        more = self.more if "tools" in fields else {"max_tokens": 200}
        body = {"model": self.plan.model, "messages": messages, "stream": True, "temperature": 0, **more, **fields}
        head = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        request = urllib.request.Request(f"{self.plan.url}/chat/completions", json.dumps(body).encode(), head)
        content, names = "", list[str]()
        with urllib.request.urlopen(request) as response:
            lines = [line.removeprefix("data: ") for line in response.read().decode().split("\n") if line]
        assert lines[-1] == "[DONE]"
        for choice in (choice for line in lines[:-1] for choice in json.loads(line)["choices"]):
            content += choice["delta"].get("content") or ""
            calls = choice["delta"].get("tool_calls") or ()
            names += [call["function"]["name"] for call in calls if call["function"].get("name")]
        return Reply([content], [(name, {}) for name in names])

    check_whole = None  # type: ignore[assignment]


class Continue(Zed):
    """What the editor extension Continue sends, as in `openaiTypeConverters.ts` of its sources."""

    more: ClassVar[dict[str, Any]] = {"max_tokens": 200, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
    more |= {"stop": ["<|endoftext|>"]}


def turn(text: str) -> list[Any]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": text}]


CHECKS: dict[str, type[Checks]] = {
    "openai": OpenAI,
    "responses": Responses,
    "anthropic": Anthropic,
    "zed": Zed,
    "continue": Continue,
    "litellm": LiteLLM,
    "langchain": LangChain,
    "pydantic-ai": PydanticAI,
    "openai-agents": OpenAIAgents,
    "openai-agents-responses": OpenAIAgents,
    "instructor": Instructor,
    "llama-index": LlamaIndex,
    "smolagents": Smolagents,
    "ollama": Ollama,
}


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
    names = [name for name in dir(checks) if name.startswith("check_") and getattr(checks, name) is not None]
    common = {name.removeprefix("check_") for name in dir(Checks) if name.startswith("check_")} - {"whole"}
    wanted = [name.removeprefix("check_") for name in names if name.removeprefix("check_") not in common - checks.can]
    found = {name: run_check(getattr(checks, f"check_{name}")) for name in wanted}
    print(json.dumps({"client": sys.argv[1], "version": metadata.version(checks.package), "checks": found}))


if __name__ == "__main__":
    main()
