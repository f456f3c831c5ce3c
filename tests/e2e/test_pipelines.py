"""Pipelines of several backends, and several pipelines: a small model, and every stage a process."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.e2e.conftest import start_server
from tests.e2e.tiny import write_tiny
from tests.unit.plugins.site import Site

NAME = "tiny"
PROMPTS = ("Once upon a time", "def fibonacci(n):", "The capital of France is", "1, 2, 3")
LENGTH = 24
MANY = 80
PATIENCE_S = 60.0
OPTIONS = ("--dtype", "float32", "--peer-timeout", "10", "--set", "min_peer_timeout=10")
"""A worker that a busy machine does not let run for a while is not lost here: the tests count losses."""


@dataclass(frozen=True)
class Client:
    """Asks a server."""

    url: str

    def open(self, path: str, body: dict[str, Any] | None = None) -> Iterator[bytes]:
        """Yield the lines of an answer; one that is no success raises."""
        request = Request(self.url + path, None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=PATIENCE_S) as answer:
            yield from answer

    def read(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what an answer says."""
        return json.loads(b"".join(self.open(path, body)))

    def is_ready(self) -> bool:
        """Return whether it can answer."""
        return bool(self.read("/cluster")["status"] == "ready")


@pytest.fixture(scope="module")
def tiny(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / NAME, model_folder)


@pytest.fixture(scope="module")
def serve(tiny: Path, model_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that serves the small model in float32 for as long as its context is entered."""

    @contextmanager
    def serving(*args: str, **changes: str) -> Iterator[Client]:
        log = tmp_path_factory.mktemp("server") / "log"
        server = start_server(model_home, log, *OPTIONS, *args, model=str(tiny), **changes)
        try:
            yield Client(server.url)
        finally:
            server.end(signal.SIGTERM)
            print(log.read_text())

    return serving


def ask(client: Client, prompt: str, length: int = LENGTH) -> list[str]:
    """Return the tokens that follow, each as text."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": length, "temperature": 0, "logprobs": 0}
    tokens: list[str] = client.read("/completions", body)["choices"][0]["logprobs"]["tokens"]
    return tokens


def ask_all(client: Client, prompts: Sequence[str] = PROMPTS) -> list[list[str]]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(client, prompt), prompts))


def look(client: Client) -> list[dict[str, Any]]:
    """Return what the server says of its replicas."""
    replicas: list[dict[str, Any]] = client.read("/cluster")["replicas"]
    return replicas


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(serve: Callable[..., Any]) -> list[list[str]]:
    """The answers of the whole model in one process."""
    with serve() as client:
        return ask_all(client)


def check_backends(client: Client, names: Sequence[str]) -> None:
    for replica in look(client):
        assert [stage["backend"] for stage in replica["stages"]] == names
        assert all(stage["tokens"] > 0 for stage in replica["stages"])
        assert replica["losses"] == 0


@pytest.mark.nightly
def test_mlx_before_torch_gives_the_tokens_of_mlx(serve: Callable[..., Any], whole: list[list[str]]) -> None:
    with serve("--backend", "mlx,torch", "--stages", "2") as client:
        assert ask_all(client) == whole
        check_backends(client, ["mlx", "torch"])


def test_stages_over_lattica_give_the_tokens_of_the_whole(serve: Callable[..., Any], whole: list[list[str]]) -> None:
    with serve("--transport", "lattica", "--stages", "2") as client:
        assert ask_all(client) == whole
        check_backends(client, ["mlx", "mlx"])


@pytest.mark.nightly
def test_replicas_of_torch_before_mlx_share_the_work_and_one_can_be_drained(
    serve: Callable[..., Any], whole: list[list[str]]
) -> None:
    def count() -> list[int]:
        return [replica["stages"][-1]["tokens"] for replica in look(client)]

    def move(word: str) -> bool:
        drained: bool = client.read(f"/replicas/0/{word}", {})["drained"]
        return drained

    with (
        serve("--backend", "torch,mlx", "--data-parallel", "2", "--stages", "2") as client,
        ThreadPoolExecutor(8) as pool,
    ):
        running: list[Future[list[str]]] = [pool.submit(ask, client, prompt, MANY) for prompt in PROMPTS]
        wait_until(lambda: min(count()) > 0)
        assert len({stage["pid"] for replica in look(client) for stage in replica["stages"]}) == 4
        assert min(replica["running"] for replica in look(client)) > 0
        assert move("drain")
        assert not any(future.done() for future in running)
        assert ask_all(client) == whole  # the other one answers
        assert [future.result()[:LENGTH] for future in running] == whole  # what had begun ended where it was
        before = count()
        assert ask_all(client) == whole
        assert [now > then for now, then in zip(count(), before, strict=True)] == [False, True]
        assert not move("readmit")
        assert ask_all(client) == whole
        assert count()[0] > before[0]
        check_backends(client, ["torch", "mlx"])


POISON = '''
import dataclasses, os
from pathlib import Path

from parallax_core.api import Availability, BackendSpec, Ref, Tensor, hookimpl

ORDER = Path(os.environ.get("PARALLAX_POISON", "/nowhere"))


@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="{name}", summary="s", probe=Ref("{module}:probe"), factory=Ref("{module}:Poisoned"))]


def probe():
    return Availability(ok=True, device="cpu")


class Poisoned:
    """Another backend, whose stages give once what the file says that the variable names."""

    def open_stage(self, plan):
        from parallax_backend_mlx.backend import MlxBackend

        stage = MlxBackend().open_stage(plan)
        step = stage.step
        stage.step = lambda batch: Spoilt(step(batch))
        return stage


class Spoilt:
    def __init__(self, output):
        self.output = output

    def wait(self):
        result = self.output.wait()
        try:
            order = ORDER.read_text()
            ORDER.unlink()
        except FileNotFoundError:
            return result
        [tensor] = result.tensors
        rows, width = tensor.shape
        shape = dict(rows=(rows + 1, width), width=(rows, width + 1), nan=(rows, width))[order]
        data = b"\\0\\0\\xc0\\x7f" * (shape[0] * shape[1])
        return dataclasses.replace(result, tensors=(Tensor(tensor.dtype, shape, data),))
'''


def follow(client: Client, prompt: str, spoil: Callable[[], object]) -> tuple[list[str], str]:
    """Stream an answer, have a step spoilt in the middle of it, and return its tokens and the error it ends with."""
    tokens: list[str] = []
    is_spoilt = False
    body = {"model": NAME, "prompt": prompt, "max_tokens": MANY, "temperature": 0, "logprobs": 0, "stream": True}
    for line in client.open("/completions", body):
        event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
        if "error" in event:
            return tokens, event["error"]["message"]
        for choice in event.get("choices", ()):
            tokens += (choice["logprobs"] or {}).get("tokens", ())
        if len(tokens) >= LENGTH and not is_spoilt:
            is_spoilt = True
            spoil()
    return tokens, ""


def give_order(file: Path, kind: str) -> None:
    """Write the file in one go, since the stage may read it at any time."""
    draft = file.with_suffix(".draft")
    draft.write_text(kind)
    draft.replace(file)


@pytest.mark.parametrize("kind", ["width", pytest.param("rows", marks=pytest.mark.nightly)])
def test_stage_that_gives_nonsense_makes_no_token(
    serve: Callable[..., Any], whole: list[list[str]], tmp_path: Path, kind: str
) -> None:
    Site(tmp_path).install("poison", POISON)
    order = tmp_path / "order"
    with serve(
        *("--backend", "poison,torch", "--layers", "0-3,3-6"), PYTHONPATH=str(tmp_path), PARALLAX_POISON=str(order)
    ) as client:
        right = ask(client, PROMPTS[0], MANY)
        assert right[:LENGTH] == whole[0]
        tokens, error = follow(client, PROMPTS[0], partial(give_order, order, "nan"))
        assert "are not finite" in error
        assert LENGTH <= len(tokens) < MANY
        assert tokens == right[: len(tokens)]
        assert follow(client, PROMPTS[0], partial(give_order, order, kind)) == (right, "")
        wait_until(client.is_ready)
        assert ask(client, PROMPTS[0]) == whole[0]
        assert look(client)[0]["losses"] == 1
