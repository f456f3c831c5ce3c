"""No answer holds the event loop for long, however large it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec

from parallax_api_openai.chat import ChatResponse
from parallax_api_openai.completion_logprobs import CompletionLogprobs, write_top
from parallax_api_openai.events import stream_chunks
from parallax_core.api import Delta, TokenLogprob
from parallax_core.api.bodies import ResponseForm
from parallax_core.api.dialect import HOLE, TokenCounts, TokenWriter, respond, write_object
from parallax_core.server.json_pieces import MESSAGE_BYTES
from parallax_core.server.json_response import gather
from tests.unit.callbacks import watched
from tests.unit.server.letters import ALPHABET, Letters, send_whole

ANSWERS, TOKENS, TOP = 16, 1024, 20
ENTRY = TokenLogprob(3, -0.25, tuple((token, -token / 7) for token in range(TOP)))


class LongFlow:
    """Yields many tokens for many answers, as steps bring them."""

    async def read(self) -> AsyncIterator[tuple[int, Delta]]:
        for step in range(TOKENS):
            await asyncio.sleep(0)
            for index in range(ANSWERS):
                ended = "length" if step == TOKENS - 1 else None
                yield 0, Delta(text="d", tokens=(3,), index=index, logprobs=(ENTRY,), ended=ended)  # type: ignore[arg-type]

    collect = read

    def count_tokens(self) -> TokenCounts:
        return TokenCounts(0, 0, 0)


def make_chat() -> ChatResponse:
    form = ResponseForm(model="toy", num_answers=ANSWERS, logprobs=TOP)
    service = SimpleNamespace(parser=None, model_id="toy")
    return ChatResponse(service, TokenWriter(Letters()), form, LongFlow(), "chatcmpl-1", 5)  # type: ignore[arg-type]


async def test_long_answer_with_logprobs_is_written_bit_by_bit() -> None:
    await send_whole(respond([b" " * MESSAGE_BYTES]))  # imports what the first response needs
    with watched() as callbacks:
        sent = await asyncio.create_task(send_whole(await asyncio.create_task(make_chat().collect())))
    callbacks.check()
    body = b"".join(sent)
    assert len(body) > 50 * MESSAGE_BYTES / 2
    reply = json.loads(body)
    assert [choice["index"] for choice in reply["choices"]] == list(range(ANSWERS))
    for choice in reply["choices"]:
        assert choice["message"]["content"] == "d" * TOKENS
        assert len(choice["logprobs"]["content"]) == TOKENS
    entry = reply["choices"][-1]["logprobs"]["content"][-1]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("d", -0.25, [100])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
        (ALPHABET[token], logprob) for token, logprob in ENTRY.top
    ]


async def test_logprobs_of_a_long_prompt_are_written_bit_by_bit() -> None:
    describe = CompletionLogprobs(Letters(), TokenWriter(Letters()), TOP)  # type: ignore[arg-type]
    with watched() as callbacks:
        columns = await asyncio.create_task(describe.describe([ENTRY] * 20_000, first=0))
        event = write_object({"index": 0, "logprobs": HOLE}, columns.write())
        pieces = [piece async for piece in gather(event)]
    callbacks.check()
    found = json.loads(b"".join(pieces))["logprobs"]
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, 20_001)
    assert found["text_offset"] == list(range(20_001))


async def test_event_of_any_size_is_whole() -> None:
    class Quiet:
        def close(self) -> None:
            pass

    async def events() -> AsyncIterator[list[bytes]]:
        yield [b"1" * 100] * 10_000
        yield [b"2"]

    sent = await send_whole(stream_chunks(events(), Quiet()))  # type: ignore[arg-type]
    assert b"".join(sent) == b"data: " + b"1" * 1_000_000 + b"\n\ndata: 2\n\ndata: [DONE]\n\n"


def test_numbers_that_json_does_not_know_are_written_as_the_lowest() -> None:
    writer = TokenWriter(Letters())  # type: ignore[arg-type]
    strange = TokenLogprob(1, float("-inf"), ((2, float("nan")), (3, -1e-30)))
    found = msgspec.json.decode(writer.write_entry(strange))
    assert (found["logprob"], *(top["logprob"] for top in found["top_logprobs"])) == (-9999, -9999, -1e-30)
    assert msgspec.json.decode(write_top(writer, strange)) == {"b": -9999, "c": -9999, "d": -1e-30}
