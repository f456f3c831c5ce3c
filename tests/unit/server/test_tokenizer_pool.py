"""Processes that read requests, with templates and tokenizers that never end, clients that leave, and losses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parallax_core.base.errors import BackendFailed, InvalidRequest, Overloaded, ParallaxError, Unavailable
from parallax_core.engine.limits import MOST_RUNNING, Limits, find_limits
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import (
    BodyRequest,
    DirectAnswer,
    ParsedBody,
    ParserTraits,
    RefusedBody,
    to_frame,
    unpack,
)
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.options import ServerOptions
from parallax_core.server.tokenizer_pool import LARGE, PoolLimits, TokenizerPool
from parallax_core.server.tokenizer_process import write_job
from tests.unit.server.dialects import BODIES, make_setup
from tests.unit.server.letters import TOY
from tests.unit.server.plugin_reader import READER, Asked
from tests.unit.tinymodel import write, write_model

LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
TEMPLATE = "{% if messages[0]['content'] == 'loop' %}" + LOOP + "{% endif %}[{{ messages[0]['content'] }}]"
QUICK = PoolLimits(num_processes=1, seconds=1)


def chat(content: str = "hello", **fields: Any) -> BodyRequest:
    """Return the body of a chat."""
    return make("chat", model="tiny", messages=[{"role": "user", "content": content}], **fields)


def make(kind: str, **fields: Any) -> BodyRequest:
    return BodyRequest(kind=kind, body=json.dumps(fields).encode())


@asynccontextmanager
async def running(folder: Path, limits: PoolLimits | None = None, **model: str) -> AsyncIterator[TokenizerPool]:
    """Run a pool for a model that is written into ``folder``."""
    write_model(folder, **{"template": TEMPLATE, **model})
    pool = TokenizerPool(make_setup(folder), limits or PoolLimits(num_processes=1))
    try:
        await pool.start()
        pool.start_others()
        yield pool
    finally:
        await pool.stop()


async def read_chat(pool: TokenizerPool, content: str = "hello") -> str:
    """Return the prompt that comes of a conversation, as a text."""
    reading = (await pool.read(chat(content))).content
    assert isinstance(reading, ParsedBody)
    alphabet = [chr(byte) for byte in range(33, 127)]  # the first tokens, in order
    return "".join(alphabet[token] for token in unpack(reading.prompts[0]))


@pytest.mark.parametrize(("generation", "temperature"), [("auto", 0.2), ("off", 1.0)])
async def test_processes_take_the_sampling_that_the_server_takes(
    tmp_path: Path, generation: str, temperature: float
) -> None:
    write(write_model(tmp_path, TEMPLATE), "generation_config.json", temperature=0.2, max_new_tokens=7)
    pool = TokenizerPool(make_setup(tmp_path, generation=generation), QUICK)
    try:
        await pool.start()
        reading = (await pool.read(chat())).content
    finally:
        await pool.stop()
    assert isinstance(reading, ParsedBody)
    assert reading.request.sampling.temperature == temperature
    assert reading.request.default_max_tokens == (7 if generation == "auto" else None)


async def test_pool_reads_what_a_reader_does(tmp_path: Path) -> None:
    asks = [
        chat(seed=1, max_tokens=3, stop=["x"], logit_bias={"3": 1.5}, stream=True, n=2),
        make("completion", model="tiny", prompt=["a", "bc"], seed=2, echo=True, logprobs=1, timeout=3.5),
        make("completion", model="tiny", prompt=[[1], [2, 3]], seed=2, best_of=3),
        make("tokenize", prompt="abc", return_token_strs=True),
        make("detokenize", tokens=[1, 2]),
        make("chat", model="other", messages=[{"role": "user", "content": "x"}]),
        chat(colour="red"),
        BodyRequest(kind="chat", body=b"{", is_lenient=True),
        BodyRequest(kind="tokenize", body=b'{"prompt": "a", "x\\ud800": 1, "y": 2}', is_lenient=True),
    ]
    async with running(tmp_path) as pool:
        reader = BodyReader(ModelTokenizer(tmp_path), "tiny", BODIES)
        for ask in asks:
            assert await pool.read(ask) == reader.answer(ask)
    contents = [reader.answer(ask).content for ask in asks]
    assert [type(content) for content in contents] == [ParsedBody] * 3 + [DirectAnswer] * 2 + [RefusedBody] * 3 + [
        DirectAnswer
    ]
    assert reader.answer(asks[-1]).ignored == ("x?", "y")


async def test_body_of_a_plugin_is_read_by_its_function_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    async with running(tmp_path) as pool:
        ask = BodyRequest(kind="plugin", body=b"abc", reader=READER.target)
        found = (await pool.read(ask)).content
        assert isinstance(found, DirectAnswer)
        asked = msgspec.msgpack.decode(found.body, type=Asked)
        assert (asked.size, asked.pid in pool.pids) == (3, True)
        refused = (await pool.read(msgspec.structs.replace(ask, body=b"bad"))).content
        assert refused == RefusedBody(kind="invalid", message="the body is bad", param="body")
        assert await read_chat(pool) == "[hello]"


async def test_model_of_a_large_body_is_found_in_a_process(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        for body, model in ((b'{"x": [1], "model": "m"}', b'{"model":"m"}'), (b"{", b'{"model":null}')):
            found = (await pool.read(BodyRequest(kind="model", body=body))).content
            assert found == DirectAnswer(model)


async def test_template_without_end_is_a_refusal_and_others_are_read(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as pool:
        [pid] = pool.pids
        with pytest.raises(InvalidRequest, match=r"more than 1 second"):
            await pool.read(chat("loop"))
        assert await read_chat(pool) == "[hello]"
        assert pool.pids != [pid]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_tokenizer_without_end_is_a_refusal_and_others_are_read(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK, split="(a|aa)+$") as pool:
        with pytest.raises(InvalidRequest, match="more than"):
            await pool.read(make("completion", model="tiny", prompt=("a" * 24 + "! ") * 2000))
        assert await read_chat(pool) == "[hello]"


async def test_template_that_takes_all_memory_is_a_refusal(tmp_path: Path) -> None:
    most = 10**10 if sys.platform == "linux" else 10**15  # elsewhere only what nobody has is refused
    template = TEMPLATE.replace("'loop'", "'big'").replace(LOOP, f"{{{{ 'x' * {most} }}}}")
    async with running(tmp_path, template=template) as pool:
        pids = pool.pids
        found = (await pool.read(chat("big"))).content
        assert isinstance(found, RefusedBody)
        assert "more memory than it may" in found.message
        assert await read_chat(pool) == "[hello]"
        assert pool.pids == pids


async def test_template_that_is_damaged_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(ParallaxError, match="chat template cannot be read"):
        async with running(tmp_path, template="{% for %}"):
            pass


async def test_template_that_takes_for_ever_to_compile_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="cannot be prepared: this takes longer than 1 second"):
        async with running(tmp_path, PoolLimits(num_processes=1, start_seconds=1), template="{{ 9 ** 999999999 }}"):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}  # else one may still kill a process when the loop ends


async def test_body_is_refused_when_too_many_wait(tmp_path: Path) -> None:
    limits = PoolLimits(num_processes=1, seconds=20, max_waiting=1)
    async with running(tmp_path, limits) as pool:
        looping = asyncio.create_task(pool.read(chat("loop")))
        await asyncio.sleep(0)  # until it is read
        waiting = asyncio.create_task(pool.read(chat()))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 requests are waiting to be read already"):
            await pool.read(chat())
        waiting.cancel()  # its client leaves, and gives its place to another
        await asyncio.wait([waiting])
        waiting = asyncio.create_task(pool.read(chat()))
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(BackendFailed, match="SIGKILL"):
            await looping
        assert isinstance((await waiting).content, ParsedBody)


def test_as_many_bodies_may_wait_as_requests_may_later() -> None:
    found = PoolLimits.of(ServerOptions(), Limits())
    assert (
        found.max_waiting >= MOST_RUNNING + find_limits(Limits(max_running=MOST_RUNNING), [TOY.open().info]).max_waiting
    )
    assert PoolLimits.of(ServerOptions(), Limits(max_running=300, max_waiting=100_000)).max_waiting == 100_300


async def test_bodies_that_wait_are_limited_by_their_size_too(tmp_path: Path) -> None:
    limits = PoolLimits(num_processes=1, seconds=20, max_waiting_bytes=1000)
    async with running(tmp_path, limits) as pool:
        looping = asyncio.create_task(pool.read(chat("loop")))
        await asyncio.sleep(0)  # until it is read
        waiting = asyncio.create_task(pool.read(chat("x" * 2000)))  # the first is taken, whatever its size
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await pool.read(chat())
        for task in (looping, waiting):
            task.cancel()
        await asyncio.wait([looping, waiting])


async def test_client_that_leaves_while_its_body_is_read_leaves_nothing_behind(tmp_path: Path) -> None:
    limits = PoolLimits(num_processes=1, seconds=2, max_waiting=1)
    async with running(tmp_path, limits) as pool:
        looping = asyncio.create_task(pool.read(chat("loop")))
        await asyncio.sleep(0)  # until it is read
        looping.cancel()
        assert await read_chat(pool) == "[hello]"  # the one that may wait does
        assert set(await asyncio.gather(read_chat(pool), read_chat(pool))) == {"[hello]"}


async def test_one_process_reads_until_the_others_are_wanted(tmp_path: Path) -> None:
    write_model(tmp_path, template=TEMPLATE)
    pool = TokenizerPool(make_setup(tmp_path), PoolLimits(num_processes=3))
    try:
        await pool.start()
        assert len(pool.pids) == 1
        assert await read_chat(pool) == "[hello]"
        pool.start_others()
        async with asyncio.timeout(60):
            while len(pool.pids) < 3:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)
    finally:
        await pool.stop()
    assert not pool.pids


async def test_large_bodies_leave_a_process_to_small_ones(tmp_path: Path) -> None:
    async with running(tmp_path, PoolLimits(num_processes=2, seconds=20), split="(a|aa)+$") as pool:
        large = make("completion", model="tiny", prompt=("a" * 24 + "! ") * LARGE)
        reading = [asyncio.create_task(pool.read(large)) for _ in range(3)]
        await asyncio.sleep(0)  # until it is read
        assert await read_chat(pool) == "[hello]"
        assert not any(task.done() for task in reading)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)


async def test_end_of_the_pool_refuses_whatever_is_read_or_waits(tmp_path: Path) -> None:
    async with running(tmp_path, PoolLimits(num_processes=1, seconds=20)) as pool:
        pids = pool.pids
        tasks = [asyncio.create_task(pool.read(chat("loop"))) for _ in range(3)]
        await asyncio.sleep(0)  # until it is read
        await pool.stop()
        for task in tasks:
            with pytest.raises(Unavailable, match="shutting down"):
                await task
        with pytest.raises(Unavailable, match="shutting down"):
            await pool.read(chat())
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_process_whose_server_is_gone_ends_even_in_the_middle_of_a_template(tmp_path: Path) -> None:
    setup = make_setup(write_model(tmp_path, TEMPLATE))
    command = [sys.executable, "-m", "parallax_core.server.tokenizer_main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(to_frame(setup) + b"".join(write_job(chat("loop"), 0.3)))
        process.stdin.close()
        assert process.wait(30) == -signal.SIGALRM
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(to_frame(setup))
        process.stdin.flush()
        assert process.stdout.read(1), "it is ready"
        with pytest.raises(subprocess.TimeoutExpired):  # however long there is nothing to read
            process.wait(1.1)
        process.stdin.close()
        assert process.wait(30) == 0


async def test_process_is_told_no_secret_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["PARALLAX_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "https_proxy", "PGPASSWORD"]
    for name in names:
        monkeypatch.setenv(name, f"http://{name}:secret@there")
    async with running(tmp_path, QUICK) as pool:
        [pid] = pool.pids
        told = read_environment(pid).split(b"\0")
    assert [entry for entry in told if b"secret" in entry] == []


def read_environment(pid: int) -> bytes:
    """Return the environment that a process was started with; nothing where the system does not show it."""
    path = Path(f"/proc/{pid}/environ")
    return path.read_bytes() if path.exists() else b""


async def test_chat_with_tools_is_read_as_in_this_process(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tools": [tool], "seed": 1}
    ask = BodyRequest(kind="chat", body=json.dumps({**body, "max_reasoning_tokens": 5, "cache_salt": "x"}).encode())
    traits = ParserTraits(finds_calls=True, special_tokens=("<end>",), reasoning_end="b")
    folder = write_model(tmp_path, "{{ tools | tojson }}{{ messages[0].content }}")
    pool = TokenizerPool(make_setup(folder, parser=traits), QUICK)
    await pool.start()
    try:
        found = await pool.read(ask)
    finally:
        await pool.stop()
    assert found == BodyReader(ModelTokenizer(folder), "tiny", BODIES, traits).answer(ask)
    assert isinstance(found.content, ParsedBody)
    assert (found.content.form.tools, found.content.request.shown_tokens) == (
        {"f": '{"type": "object"}'},
        frozenset({256}),
    )
