"""Checks Ollama's official client against a running server with the plugin for its API; see `benchmarks.clients`.

    python -m benchmarks.ollama_guest ollama PLAN

The plan and the report are those of `guests.py`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.agent_guests import ASK_CITY, ASK_TOOL, TOOL, AnswerChecks, City, offer_tool, run_checks
from benchmarks.guests import ANSWER, QUESTION, turn


class OllamaChecks(AnswerChecks):
    """Checks of Ollama's official client, which cannot force calls."""

    package = "ollama"

    def client(self, **options: Any) -> Any:
        """Return a client."""
        import ollama  # type: ignore[import-not-found]

        return ollama.Client(self.plan.url.removesuffix("/v1"), **options)

    def chat(self, text: str, **fields: Any) -> Any:
        """Return a greedy answer."""
        return self.client().chat(model=self.plan.model, messages=turn(text), options={"temperature": 0}, **fields)

    def ask(self, text: str) -> str:
        """See `AnswerChecks.ask`."""
        return str(self.chat(text).message.content)

    def stream(self, text: str) -> list[str]:
        """See `AnswerChecks.stream`."""
        return [part.message.content for part in self.chat(text, stream=True)]

    def check_object(self) -> None:
        """An answer of a fixed form is valid."""
        City.model_validate_json(self.chat(ASK_CITY, format=City.model_json_schema()).message.content)

    def check_generate(self) -> None:
        """A prompt is answered with the chat template, and continued without it."""
        ask = self.client().generate
        assert ask(model=self.plan.model, prompt=QUESTION, options={"temperature": 0}).response == ANSWER
        options = {"temperature": 0, "num_predict": 1}
        raw = ask(model=self.plan.model, prompt="The capital of France is", raw=True, options=options)
        assert (raw.response, raw.done_reason, raw.eval_count) == (" Paris", "length", 1)

    def check_tool_result(self) -> None:
        """A conversation that goes on after the result of a tool is answered."""
        call = {"function": {"name": TOOL, "arguments": {"country": "France"}}}
        result = {"role": "tool", "tool_name": TOOL, "content": "Paris"}
        messages = [*turn(ASK_TOOL), {"role": "assistant", "tool_calls": [call]}, result]
        answer = self.client().chat(model=self.plan.model, messages=messages, tools=offer_tool())
        assert answer.done_reason == "stop"

    def check_models(self) -> None:
        """The model is listed and shown."""
        assert [model.model for model in self.client().list().models] == [self.plan.model]
        assert "completion" in self.client().show(self.plan.model).capabilities

    def check_errors(self) -> None:
        """Unknown models, unsupported fields and wrong keys are errors with their status."""
        assert self.catch(model="other")[0] == 404
        status, text = self.catch(options={"mirostat": 1})
        assert (status, "mirostat" in text) == (400, True)
        guarded = self.client(headers={"Authorization": "Bearer wrong"})
        guarded._client.base_url = self.plan.guarded.removesuffix("/v1")
        assert self.catch(guarded)[0] == 401

    def catch(self, client: Any = None, **fields: Any) -> tuple[int, str]:
        """Send a bad request, and return the status and the text of the error."""
        import ollama

        try:
            (client or self.client()).chat(**{"model": self.plan.model, "messages": turn(QUESTION), **fields})
        except ollama.ResponseError as error:
            return error.status_code, str(error.error)
        return 200, ""


if __name__ == "__main__":
    run_checks({"ollama": OllamaChecks})
