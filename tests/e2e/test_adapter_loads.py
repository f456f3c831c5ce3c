"""A thousand LoRA adapters come and go under load: no answer changes, and no memory is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.e2e.conftest import AdapterFiles, Server
from tests.e2e.test_adapters import PROMPTS, get, post, stream

LOADS, WARM = 1000, 200
MOST_GROWTH = 24 * 2**20
"""The most bytes by which the processes may grow after the first loads; those of all loads have far more."""


def measure(server: Server) -> int:
    """Return the bytes of a server's processes."""
    process = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_thousand_loads_and_unloads_under_load_lose_nothing(
    serve: Callable[..., Server], adapter_files: AdapterFiles
) -> None:
    server = serve(adapter_files.model, "--backend", "torch", "--dtype", "float32")
    name, is_over = get(server, "/models")["data"][0]["id"], threading.Event()
    assert post(server, "/load_lora_adapter", lora_name="steady", lora_path=str(adapter_files.adapters[1]))[0] == 200
    wanted = {model: stream(server, model, PROMPTS[1]) for model in (name, "steady")}

    def work(model: str) -> int:
        count = 0
        while not is_over.is_set():
            assert stream(server, model, PROMPTS[1]) == wanted[model]
            count += 1
        return count

    sizes = []
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, model) for model in (name, "steady")]
        try:
            for number in range(LOADS):
                path = str(adapter_files.adapters[number % 2 * 2])
                assert post(server, "/load_lora_adapter", lora_name="brief", lora_path=path)[0] == 200
                assert post(server, "/unload_lora_adapter", lora_name="brief")[0] == 200
                if number >= WARM:
                    sizes.append(measure(server))
        finally:
            is_over.set()
        counts = [each.result() for each in working]
    print(f"answers {counts}, MB {[size >> 20 for size in (sizes[0], max(sizes), sizes[-1])]}")
    assert all(counts)
    assert sizes[-1] - sizes[0] < MOST_GROWTH
    assert [each["id"] for each in get(server, "/models")["data"]] == [name, "steady"]
