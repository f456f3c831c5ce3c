from __future__ import annotations

from parallax_cluster.config.join import JoinSettings


def test_worker_of_a_code_claims_the_memory_of_its_machine_like_that_of_the_server() -> None:
    worker = JoinSettings(memory=2.0, drain=4.0).as_worker(connect="tcp://10.0.0.9:1", node="mini/7", transport="zmq")
    assert (worker.as_joined, worker.supervised) == (True, False)
    assert (worker.memory_bytes, worker.drain, worker.connect, worker.node) == (
        2 * 10**9,
        4.0,
        "tcp://10.0.0.9:1",
        "mini/7",
    )
