"""Checks that a library gets calls or typed answers where it offers tools and asks for a schema in one request.

    python -m benchmarks.typed_guests NAME PLAN

The plan and the report are those of `guests.py`. An agent that ends in a typed answer sends such requests: the model
calls a tool, or its answer follows the schema. Zed and Continue are editors: their requests are sent in the form of
`open_ai.rs` and `openaiTypeConverters.ts` in their sources, with an output schema besides.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Literal

from benchmarks.agent_guests import (
    ASK_CITY,
    ASK_TOOL,
    SCHEMA,
    TOOL,
    AnthropicChecks,
    City,
    LiteLLMTools,
    OpenAIAgentsChecks,
    OpenAITools,
    PydanticAIChecks,
    offer_tool,
    run_checks,
)
from benchmarks.guests import ANSWER, QUESTION, Plan, turn

CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "City", "strict": True, "schema": CITY_SCHEMA}}


class TypedChecks:
    """The checks of a library that asks for a typed answer and offers a tool."""

    package = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.called: list[str] = []
        """The arguments with which the tool was called."""

    def capital_of(self, country: Literal["France", "Italy"]) -> str:
        """Find a capital."""
        self.called.append(country)
        return {"France": "Paris", "Italy": "Rome"}[country]

    def fetch_typed(self, text: str) -> Any:
        """Return the answer to a request with the tool and the form of `City`; None: it calls the tool."""
        raise NotImplementedError

    def check_tools_and_object(self) -> None:
        """The answer calls the tool or has the form."""
        for text in (ASK_CITY, ASK_TOOL):
            self.called.clear()
            if (found := self.fetch_typed(text)) is not None:
                City.model_validate(found)
            else:
                assert self.called

    def note_calls(self, calls: list[tuple[str, Any]]) -> None:
        """Note the calls of an answer, names and arguments; only the arguments of strict tools follow the schema."""
        for name, arguments in calls:
            assert name == TOOL, name
            found = json.loads(arguments) if isinstance(arguments, str) else arguments
            assert isinstance(found, dict), found
            self.called.append(json.dumps(found))


class OpenAITyped(TypedChecks):
    """Checks of OpenAI's client, over chat completions."""

    package = "openai"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        message = (
            OpenAITools(self.plan).create(text, tools=offer_tool(), response_format=RESPONSE_FORMAT).choices[0].message
        )
        self.note_calls([(call.function.name, call.function.arguments) for call in message.tool_calls or ()])
        return None if message.tool_calls else json.loads(message.content)


class ResponsesTyped(TypedChecks):
    """Checks of OpenAI's client, over Responses."""

    package = "openai"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        tool = {
            "type": "function",
            "name": TOOL,
            "description": "Find a capital.",
            "parameters": SCHEMA,
            "strict": True,
        }
        answer = (
            OpenAITools(self.plan)
            .client()
            .responses.parse(
                model=self.plan.model, input=text, tools=[tool], text_format=City, temperature=0, max_output_tokens=200
            )
        )
        calls = [item for item in answer.output if item.type == "function_call"]
        self.note_calls([(call.name, call.arguments) for call in calls])
        return None if calls else answer.output_parsed


class AnthropicTyped(TypedChecks):
    """Checks of Anthropic's client."""

    package = "anthropic"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        checks = AnthropicChecks(self.plan)
        tools = [{"name": TOOL, "description": "Find a capital.", "input_schema": SCHEMA}]
        form = {"format": {"type": "json_schema", "schema": CITY_SCHEMA}}
        message = checks.client().messages.create(**checks.fields(text, tools=tools, output_config=form))
        calls = [block for block in message.content if block.type == "tool_use"]
        self.note_calls([(call.name, call.input) for call in calls])
        return None if calls else json.loads("".join(block.text for block in message.content))


class LiteLLMTyped(TypedChecks):
    """Checks of LiteLLM."""

    package = "litellm"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        checks = LiteLLMTools(self.plan)
        message = checks.create(text, tools=offer_tool(), response_format=RESPONSE_FORMAT).choices[0].message
        self.note_calls([(call.function.name, call.function.arguments) for call in message.tool_calls or ()])
        return None if message.tool_calls else json.loads(message.content)


class LangChainTyped(TypedChecks):
    """Checks of LangChain's agents."""

    package = "langchain"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        from langchain.agents import create_agent  # type: ignore[import-not-found]
        from langchain.agents.structured_output import ProviderStrategy  # type: ignore[import-not-found]
        from langchain_core.tools import tool  # type: ignore[import-not-found]
        from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
        from langgraph.errors import GraphRecursionError  # type: ignore[import-not-found]

        options = {"base_url": self.plan.url, "api_key": "none", "max_retries": 0, "temperature": 0, "max_tokens": 200}
        model = ChatOpenAI(model=self.plan.model, **options)
        agent = create_agent(model, [tool(self.capital_of)], response_format=ProviderStrategy(City))
        try:
            return agent.invoke({"messages": turn(text)}, {"recursion_limit": 6})["structured_response"]
        except GraphRecursionError:
            return None


class PydanticAITyped(TypedChecks):
    """Checks of Pydantic AI."""

    package = "pydantic-ai-slim"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        from pydantic_ai import NativeOutput, UsageLimitExceeded, UsageLimits  # type: ignore[import-not-found]

        agent = PydanticAIChecks(self.plan).agent(output_type=NativeOutput(City), tools=[self.capital_of])
        try:
            return agent.run_sync(text, usage_limits=UsageLimits(request_limit=3)).output
        except UsageLimitExceeded:
            return None


class OpenAIAgentsTyped(TypedChecks):
    """Checks of OpenAI's Agents SDK, over chat completions."""

    package = "openai-agents"

    def make_agent(self, **options: Any) -> Any:
        """Return an agent."""
        return OpenAIAgentsChecks(self.plan).agent(**options)

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        from agents import MaxTurnsExceeded, Runner, function_tool  # type: ignore[import-not-found]

        agent = self.make_agent(output_type=City, tools=[function_tool(self.capital_of)])
        try:
            return Runner.run_sync(agent, text, max_turns=3).final_output
        except MaxTurnsExceeded:
            return None


class OpenAIAgentsResponses(OpenAIAgentsTyped):
    """Checks of OpenAI's Agents SDK, over Responses."""

    def make_agent(self, **options: Any) -> Any:
        """See `OpenAIAgentsTyped.make_agent`."""
        import openai
        from agents import OpenAIResponsesModel

        agent = super().make_agent(**options)
        client = openai.AsyncOpenAI(base_url=self.plan.url, api_key="none", max_retries=0)
        agent.model = OpenAIResponsesModel(model=self.plan.model, openai_client=client)
        return agent


class InstructorTyped(TypedChecks):
    """Checks of Instructor, whose typed answers are calls, and which sends an output schema beside them."""

    package = "instructor"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        import instructor  # type: ignore[import-not-found]
        import openai

        client = openai.OpenAI(base_url=self.plan.url, api_key="none", max_retries=0)
        usual = {"model": self.plan.model, "response_model": City, "messages": turn(text), "max_retries": 0}
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
            found = instructor.from_openai(client, mode=mode).create(**usual, temperature=0, max_tokens=200)
            assert isinstance(found, City)
        responses = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
        return responses.create(**usual, temperature=0, max_output_tokens=200)


class LlamaIndexTyped(TypedChecks):
    """Checks of LlamaIndex."""

    package = "llama-index-core"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        from llama_index.core.base.llms.types import ChatMessage  # type: ignore[import-not-found]
        from llama_index.core.tools import FunctionTool  # type: ignore[import-not-found]
        from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-not-found]

        options = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "max_tokens": 200}
        model = OpenAILike(
            model=self.plan.model, api_base=self.plan.url, api_key="none", temperature=0, context_window=2048, **options
        )
        assert model.chat([ChatMessage(role="user", content=QUESTION)]).message.content == ANSWER

        def capital_of(country: str) -> str:
            """Find a capital."""
            return country

        tool = FunctionTool.from_defaults(capital_of, name=TOOL)
        answer = model.chat_with_tools([tool], user_msg=text, response_format=RESPONSE_FORMAT)
        calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        self.note_calls([(call.tool_name, call.tool_kwargs) for call in calls])
        return None if calls else json.loads(answer.message.content)


class SmolagentsTyped(TypedChecks):
    """Checks of smolagents."""

    package = "smolagents"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        from smolagents import ChatMessage, OpenAIServerModel, tool  # type: ignore[import-not-found]

        def capital_of(country: str) -> str:
            """Find a capital.

            Args:
                country: France or Italy.
            """
            return country

        options = {"api_base": self.plan.url, "api_key": "none", "temperature": 0, "max_tokens": 200}
        model = OpenAIServerModel(self.plan.model, **options)
        messages = [ChatMessage(role="user", content=[{"type": "text", "text": text}])]
        answer = model.generate(messages, tools_to_call_from=[tool(capital_of)], response_format=RESPONSE_FORMAT)
        self.note_calls([(call.function.name, call.function.arguments) for call in answer.tool_calls or ()])


class OllamaTyped(TypedChecks):
    """Checks of Ollama's client."""

    package = "ollama"

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        import ollama  # type: ignore[import-not-found]

        client = ollama.Client(self.plan.url.removesuffix("/v1"))
        options = {"temperature": 0, "num_predict": 200}
        fields = {"messages": turn(text), "options": options, "tools": offer_tool(), "format": CITY_SCHEMA}
        message = client.chat(model=self.plan.model, **fields).message
        self.note_calls([(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or ()])
        return None if message.tool_calls else json.loads(message.content or "")


class ZedTyped(TypedChecks):
    """Checks of what the editor Zed sends: an agent's turn, streamed."""

    package = "pydantic"

    def describe(self, text: str) -> dict[str, Any]:
        """Return the body of a request."""
        return {
            "model": self.plan.model,
            "messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": text},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 200,
            "temperature": 0.0,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "tools": offer_tool(),
            "prompt_cache_key": "thread-1",
        }

    def fetch_typed(self, text: str) -> Any:
        """See `TypedChecks.fetch_typed`."""
        body = json.dumps({**self.describe(text), "response_format": RESPONSE_FORMAT}).encode()
        head = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        request = urllib.request.Request(f"{self.plan.url}/chat/completions", body, head)
        content, names, arguments = "", list[str](), ""
        with urllib.request.urlopen(request) as response:
            lines = [line.removeprefix("data: ") for line in response.read().decode().split("\n") if line]
        assert lines[-1] == "[DONE]"
        for chunk in map(json.loads, lines[:-1]):
            for choice in chunk["choices"]:
                content += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    names += [call["function"]["name"]] if call["function"].get("name") else []
                    arguments += call["function"].get("arguments") or ""
        self.note_calls([(name, arguments) for name in names])
        return None if names else json.loads(content)


class ContinueTyped(ZedTyped):
    """Checks of what the editor extension Continue sends."""

    def describe(self, text: str) -> dict[str, Any]:
        """See `ZedTyped.describe`."""
        return {
            "messages": [{"role": "system", "content": "You are in agent mode."}, *turn(text)],
            "model": self.plan.model,
            "max_tokens": 200,
            "temperature": 0,
            "top_p": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "stream": True,
            "stop": ["<|endoftext|>"],
            "tools": offer_tool(),
        }


CHECKS: dict[str, type[Any]] = {
    "openai-typed": OpenAITyped,
    "responses-typed": ResponsesTyped,
    "anthropic-typed": AnthropicTyped,
    "litellm-typed": LiteLLMTyped,
    "langchain-typed": LangChainTyped,
    "pydantic-ai-typed": PydanticAITyped,
    "openai-agents-typed": OpenAIAgentsTyped,
    "openai-agents-responses": OpenAIAgentsResponses,
    "instructor": InstructorTyped,
    "llama-index": LlamaIndexTyped,
    "smolagents": SmolagentsTyped,
    "ollama-typed": OllamaTyped,
    "zed": ZedTyped,
    "continue": ContinueTyped,
}


if __name__ == "__main__":
    run_checks(CHECKS)
