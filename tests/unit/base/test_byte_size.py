from __future__ import annotations

from parallax_core.base.byte_size import format_bytes


def test_bytes_are_written_in_words() -> None:
    assert [format_bytes(size) for size in (0, 1023, 2048, 3 * 2**20, 1.25 * 2**30)] == [
        "0 bytes",
        "1023 bytes",
        "2 KiB",
        "3 MiB",
        "1.2 GiB",
    ]
