"""Checks one agent library against a running server; `benchmarks.clients` runs it in each library's environment.

    python -m benchmarks.agent_guests openai-tools|anthropic|pydantic-ai|openai-agents|litellm-tools PLAN

The plan and the report are those of `guests.py`. The model is too small to choose tools by itself, so the checks force
a call and an object; the grammar of the server makes both valid.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Literal

from pydantic import BaseModel

from benchmarks.guests import ANSWER, QUESTION, STORY, Plan, run_check, turn

TOOL = "capital_of"
"""The tool that answers have to call."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"country": {"enum": ["France", "Italy"]}},
    "required": ["country"],
    "additionalProperties": False,
}
"""The schema of its arguments."""
ASK_TOOL = "Use the tool to find the capital of France."
ASK_CITY = "Which city is the capital of France? Answer as JSON."


class City(BaseModel):
    """What an answer of a fixed form has to be."""

    city: Literal["Paris", "Rome"]
    is_capital: bool


class AnswerChecks:
    """The checks of every library; a subclass implements the calls with one."""

    package = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def ask(self, text: str) -> str:
        """Return the greedy answer."""
        raise NotImplementedError

    def stream(self, text: str) -> list[str]:
        """Return the pieces of the greedy answer."""
        raise NotImplementedError

    def check_whole(self) -> None:
        """The whole answer is right."""
        assert self.ask(QUESTION) == ANSWER

    def check_stream(self) -> None:
        """A streamed answer is the same, and arrives in several pieces."""
        pieces = [piece for piece in self.stream(QUESTION) if piece]
        assert "".join(pieces) == ANSWER
        assert len(pieces) > 1, pieces


class AgentChecks(AnswerChecks):
    """The checks of a library that can force calls."""

    def call(self) -> tuple[str, Any]:
        """Return the name and the arguments of a forced call."""
        raise NotImplementedError

    def check_tool(self) -> None:
        """A forced call names the tool, with arguments that follow its schema."""
        name, arguments = self.call()
        assert name == TOOL
        assert arguments in ({"country": "France"}, {"country": "Italy"}), arguments


class ObjectChecks(AgentChecks):
    """The checks of a library that also asks for objects."""

    def fetch_city(self) -> City:
        """Return an answer of a fixed form."""
        raise NotImplementedError

    def check_object(self) -> None:
        """An answer of a fixed form is valid."""
        assert isinstance(self.fetch_city(), City)


def offer_tool() -> list[Any]:
    """Return the tool in the form of chat completions."""
    return [{"type": "function", "function": {"name": TOOL, "description": "Find a capital.", "parameters": SCHEMA}}]


class OpenAITools(ObjectChecks):
    """Checks of the official client."""

    package = "openai"

    def client(self) -> Any:
        """Return a client."""
        import openai

        return openai.OpenAI(base_url=self.plan.url, api_key="none", max_retries=0)

    def create(self, text: str, **fields: Any) -> Any:
        """Return a greedy chat completion."""
        usual = {"model": self.plan.model, "messages": turn(text), "temperature": 0, "max_tokens": 200}
        return self.client().chat.completions.create(**usual, **fields)

    def ask(self, text: str) -> str:
        """See `AgentChecks.ask`."""
        return str(self.create(text).choices[0].message.content)

    def stream(self, text: str) -> list[str]:
        """See `AgentChecks.stream`."""
        return [event.choices[0].delta.content or "" for event in self.create(text, stream=True)]

    def call(self) -> tuple[str, Any]:
        """See `AgentChecks.call`."""
        chosen = {"type": "function", "function": {"name": TOOL}}
        answer = self.create(ASK_TOOL, tools=offer_tool(), tool_choice=chosen).choices[0]
        [call] = answer.message.tool_calls
        return call.function.name, json.loads(call.function.arguments)

    def check_streamed_tool(self) -> None:
        """The arguments of a streamed call arrive in pieces, after its id and name."""
        events = list(self.create(ASK_TOOL, tools=offer_tool(), tool_choice="required", stream=True))
        calls = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
        assert (calls[0].function.name, bool(calls[0].id)) == (TOOL, True)
        assert json.loads("".join(call.function.arguments or "" for call in calls))["country"] in {"France", "Italy"}
        assert events[-1].choices[0].finish_reason == "tool_calls"

    def check_tool_result(self) -> None:
        """A conversation that goes on after the result of a tool is answered."""
        call = {"id": "call00001", "type": "function", "function": {"name": TOOL, "arguments": '{"country":"France"}'}}
        messages = [
            *turn(ASK_TOOL),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "content": "Paris"},
        ]
        answer = self.client().chat.completions.create(
            model=self.plan.model, messages=messages, tools=offer_tool(), temperature=0, max_tokens=20
        )
        assert answer.choices[0].message.content

    def fetch_city(self) -> City:
        """See `ObjectChecks.fetch_city`."""
        answer = self.client().chat.completions.parse(
            model=self.plan.model, messages=turn(ASK_CITY), response_format=City, temperature=0, max_tokens=200
        )
        found: City = answer.choices[0].message.parsed
        return found


class LiteLLMTools(ObjectChecks):
    """Checks of LiteLLM, with the server as an OpenAI-compatible endpoint."""

    package = "litellm"

    def create(self, text: str, **fields: Any) -> Any:
        """Return a greedy chat completion."""
        import litellm  # type: ignore[import-not-found]

        usual = {"api_base": self.plan.url, "api_key": "none", "num_retries": 0, "temperature": 0, "max_tokens": 200}
        return litellm.completion(model=f"openai/{self.plan.model}", messages=turn(text), **usual, **fields)

    def ask(self, text: str) -> str:
        """See `AgentChecks.ask`."""
        return str(self.create(text).choices[0].message.content)

    def stream(self, text: str) -> list[str]:
        """See `AgentChecks.stream`."""
        return [event.choices[0].delta.content or "" for event in self.create(text, stream=True)]

    def call(self) -> tuple[str, Any]:
        """See `AgentChecks.call`."""
        answer = self.create(ASK_TOOL, tools=offer_tool(), tool_choice="required").choices[0]
        call = answer.message.tool_calls[0]
        return call.function.name, json.loads(call.function.arguments)

    def fetch_city(self) -> City:
        """See `ObjectChecks.fetch_city`."""
        return City.model_validate_json(self.create(ASK_CITY, response_format=City).choices[0].message.content)


class AnthropicChecks(AgentChecks):
    """Checks of Anthropic's official client."""

    package = "anthropic"

    def client(self, **options: Any) -> Any:
        """Return a client."""
        import anthropic

        usual = {"base_url": self.plan.url.removesuffix("/v1"), "api_key": "none", "max_retries": 0}
        return anthropic.Anthropic(**{**usual, **options})

    def fields(self, text: str, **more: Any) -> dict[str, Any]:
        """Return the fields of a greedy message."""
        extra = {"temperature": 0, **more.pop("extra_body", {})}  # the client has no parameter for it
        return {"model": self.plan.model, "messages": turn(text), "max_tokens": 200, "extra_body": extra, **more}

    def ask(self, text: str) -> str:
        """See `AgentChecks.ask`."""
        [block] = self.client().messages.create(**self.fields(text)).content
        return str(block.text)

    def stream(self, text: str) -> list[str]:
        """See `AgentChecks.stream`."""
        with self.client().messages.stream(**self.fields(text)) as stream:
            return list(stream.text_stream)

    def call(self) -> tuple[str, Any]:
        """See `AgentChecks.call`."""
        tools = [{"name": TOOL, "description": "Find a capital.", "input_schema": SCHEMA}]
        fields = self.fields(ASK_TOOL, tools=tools, tool_choice={"type": "tool", "name": TOOL})
        with self.client().messages.stream(**fields) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        [block] = [block for block in message.content if block.type == "tool_use"]
        return block.name, block.input

    def check_count(self) -> None:
        """The tokens of a prompt are counted as an answer reports them."""
        fields = self.fields(QUESTION)
        answer = self.client().messages.create(**fields)
        usage = answer.usage
        counted = self.client().messages.count_tokens(model=self.plan.model, messages=fields["messages"])
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert counted.input_tokens == usage.input_tokens + cached

    def check_bad_field(self) -> None:
        """A wrong field is a 400 in Anthropic's shape."""
        import anthropic

        found = ""
        try:
            self.client().messages.create(**self.fields(QUESTION, extra_body={"top_k": -2}))
        except anthropic.BadRequestError as error:
            found = error.message
        assert "top_k" in found, found

    def check_wrong_key(self) -> None:
        """A wrong key is a 401."""
        import anthropic

        try:
            self.client(base_url=self.plan.guarded.removesuffix("/v1"), api_key="wrong").messages.create(
                **self.fields(STORY)
            )
        except anthropic.AuthenticationError:
            return
        raise AssertionError("no error")


class PydanticAIChecks(ObjectChecks):
    """Checks of Pydantic AI."""

    package = "pydantic-ai-slim"

    def agent(self, **options: Any) -> Any:
        """Return an agent."""
        from pydantic_ai import Agent  # type: ignore[import-not-found]
        from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
        from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

        model = OpenAIChatModel(self.plan.model, provider=OpenAIProvider(base_url=self.plan.url, api_key="none"))
        return Agent(model, model_settings={"temperature": 0, "max_tokens": 200}, **options)

    def ask(self, text: str) -> str:
        """See `AgentChecks.ask`."""
        return str(self.agent().run_sync(text).output)

    def stream(self, text: str) -> list[str]:
        """See `AgentChecks.stream`."""
        return list(self.agent().run_stream_sync(text).stream_text(delta=True, debounce_by=None))

    def call(self) -> tuple[str, Any]:
        """See `AgentChecks.call`."""
        from pydantic_ai import ToolOutput

        class Country(BaseModel):
            """Find a capital."""

            country: Literal["France", "Italy"]

        output = self.agent(output_type=ToolOutput(Country, name=TOOL)).run_sync(ASK_TOOL).output
        return TOOL, output.model_dump()

    def fetch_city(self) -> City:
        """See `ObjectChecks.fetch_city`."""
        from pydantic_ai import NativeOutput

        found: City = self.agent(output_type=NativeOutput(City)).run_sync(ASK_CITY).output
        return found


class OpenAIAgentsChecks(ObjectChecks):
    """Checks of OpenAI's Agents SDK over chat completions."""

    package = "openai-agents"

    def agent(self, **options: Any) -> Any:
        """Return an agent."""
        import openai
        from agents import (  # type: ignore[import-not-found]
            Agent,
            ModelSettings,
            OpenAIChatCompletionsModel,
            set_tracing_disabled,
        )

        set_tracing_disabled(disabled=True)
        client = openai.AsyncOpenAI(base_url=self.plan.url, api_key="none", max_retries=0)
        settings = ModelSettings(temperature=0, max_tokens=200, tool_choice=options.pop("tool_choice", None))
        model = OpenAIChatCompletionsModel(model=self.plan.model, openai_client=client)
        return Agent(name="checker", model=model, model_settings=settings, **options)

    def run(self, text: str, **options: Any) -> Any:
        """Return the result of a run."""
        from agents import Runner

        return Runner.run_sync(self.agent(**options), text)

    def ask(self, text: str) -> str:
        """See `AgentChecks.ask`."""
        return str(self.run(text).final_output)

    def stream(self, text: str) -> list[str]:
        """See `AgentChecks.stream`."""
        import asyncio

        from agents import Runner

        async def read() -> list[str]:
            events = Runner.run_streamed(self.agent(), text).stream_events()
            data = [event.data async for event in events if event.type == "raw_response_event"]
            return [each.delta for each in data if each.type == "response.output_text.delta"]

        return asyncio.run(read())

    def call(self) -> tuple[str, Any]:
        """See `AgentChecks.call`."""
        from agents import function_tool

        called: list[tuple[str, Any]] = []

        def capital_of(country: Literal["France", "Italy"]) -> str:
            """Find a capital."""
            called.append((TOOL, {"country": country}))
            return "Paris"

        tool = function_tool(capital_of)
        self.run(ASK_TOOL, tools=[tool], tool_choice="required", tool_use_behavior="stop_on_first_tool")
        return called[0]

    def fetch_city(self) -> City:
        """See `ObjectChecks.fetch_city`."""
        found: City = self.run(ASK_CITY, output_type=City).final_output
        return found


CHECKS: dict[str, type[AnswerChecks]] = {
    "openai-tools": OpenAITools,
    "anthropic": AnthropicChecks,
    "pydantic-ai": PydanticAIChecks,
    "openai-agents": OpenAIAgentsChecks,
    "litellm-tools": LiteLLMTools,
}


def run_checks(known: Mapping[str, type[AnswerChecks]]) -> None:
    """Run all checks of the library that the arguments name, and print the report."""
    checks = known[sys.argv[1]](Plan(**json.loads(sys.argv[2])))
    runs: dict[str, Callable[[], None]] = {
        name.removeprefix("check_"): getattr(checks, name) for name in dir(checks) if name.startswith("check_")
    }
    found = {name: run_check(run) for name, run in runs.items()}
    print(json.dumps({"client": sys.argv[1], "version": metadata.version(checks.package), "checks": found}))


if __name__ == "__main__":
    run_checks(CHECKS)
