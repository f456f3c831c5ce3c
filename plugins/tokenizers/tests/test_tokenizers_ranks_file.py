from __future__ import annotations

import base64
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError
from parallax_tokenizers.ranks_file import looks_like_ranks, read_ranks

BYTES = [b"%s %d" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)]


def write(folder: Path, *lines: bytes) -> Path:
    file = folder / "tiktoken.model"
    file.write_bytes(b"\n".join([*BYTES, *lines]) + b"\n")
    return file


def test_tokens_are_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    assert read_ranks(write(tmp_path, b"YWI= 257", b"", b"eHk= 256"))[256:] == [b"xy", b"ab"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"YWI 256", "line 257 is not a token in base64"),
        (b"Y!I= 256", "line 257 is not a token in base64"),
        (b"YWI=", "line 257 is not a token in base64"),
        (b"YWI= 256 7", "line 257 is not a token in base64"),
        (b"YWI= " + b"9" * 5000, "line 257 is not a token in base64"),
        (b"YWI= \xff", "line 257 is not a token in base64"),
        (b"YWI= 255", "has the rank 255, which an earlier one has"),
        (b"YWI= 300", "its last rank is 300, of 257 tokens"),
        (b"YWI= -1", "its last rank is 255, of 257 tokens"),
        (b"YQ== 256", "a token occurs twice"),
        (b" 256", "not a token"),
        (base64.b64encode(b"a" * 3000) + b" 256", "a token of length 3000"),
    ],
)
def test_damaged_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    with pytest.raises(ParallaxError, match=message):
        read_ranks(write(tmp_path, line))


def test_missing_byte_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tiktoken.model"
    file.write_bytes(b"\n".join(BYTES[:255]))
    with pytest.raises(ParallaxError, match="no token for the byte 255"):
        read_ranks(file)


def test_format_is_recognized_by_its_first_line() -> None:
    assert looks_like_ranks(b"IQ== 0\nIg== 1\n")
    assert not looks_like_ranks(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    assert not looks_like_ranks(b"")
