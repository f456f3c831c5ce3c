from __future__ import annotations

import pytest

from parallax_cluster.membership.code_rules import CodeRecord, describe_state, find_obstacle


def make_code(most_uses: int = 1, *, is_revoked: bool = False, num_uses: int = 0) -> CodeRecord:
    return CodeRecord(
        proof=b"proof", created=0.0, expires=100.0, most_uses=most_uses, is_revoked=is_revoked, num_uses=num_uses
    )


@pytest.mark.parametrize(
    ("code", "users", "now", "obstacle"),
    [
        (make_code(), [], 50.0, ""),
        (make_code(), [b"key"], 50.0, ""),
        (make_code(), [b"other"], 50.0, "was to be used once, and has been"),
        (make_code(2), [b"other"], 50.0, ""),
        (make_code(2), [b"other", b"third"], 50.0, "was to be used by 2 machines"),
        (make_code(0), [b"other"] * 50, 50.0, ""),
        (make_code(), [], 100.0, "has expired"),
        (make_code(is_revoked=True), [], 50.0, "was revoked"),
        (None, [], 50.0, "is unknown"),
    ],
)
def test_code_admits_a_machine_unless_there_is_an_obstacle(
    code: CodeRecord | None, users: list[bytes], now: float, obstacle: str
) -> None:
    found = find_obstacle(code, users, b"key", now)
    assert obstacle in found
    assert bool(found) == bool(obstacle)


@pytest.mark.parametrize(
    ("code", "now", "state"),
    [
        (make_code(), 0.0, "valid"),
        (make_code(num_uses=1), 0.0, "used"),
        (make_code(0, num_uses=9), 0.0, "valid"),
        (make_code(), 100.0, "expired"),
        (make_code(is_revoked=True), 100.0, "revoked"),
    ],
)
def test_state_of_a_code_is_one_word(code: CodeRecord, now: float, state: str) -> None:
    assert describe_state(code, now) == state


def test_name_of_a_code_does_not_tell_its_proof() -> None:
    assert len(make_code().name) == 8
    assert make_code().proof.hex() not in make_code().name
