from __future__ import annotations

from parallax_backend_vllm.sampling import SEEDS, find_seed


def test_answers_of_a_request_are_not_those_to_requests_with_other_seeds() -> None:
    """The second answer to a request with seed 1 had the seed of a request with seed 2."""
    seeds = [find_seed(seed, index) for seed in (0, 1, 2, 2**63 - 1, 2**63 + 7) for index in range(128)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < SEEDS for seed in seeds)


def test_first_answer_has_the_seed_of_the_request() -> None:
    assert [find_seed(seed, 0) for seed in (0, 5, 2**63 + 1)] == [0, 5, 1]
    assert find_seed(5, 1) == find_seed(5, 1) != find_seed(5, 2)
