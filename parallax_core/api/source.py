"""What a model source uses to fetch parts of files, and to check a model's folder."""

from parallax_core.base.byteranges import ByteRange, ByteRanges
from parallax_core.checkpoint.folder_layout import (
    CONFIG,
    POOLING,
    SINGLE,
    TOKENIZER,
    check_folder,
    find_tokenizer,
    hint_for,
    is_in_layout,
    read_shards,
)
from parallax_core.checkpoint.partial import FetchedRange, name_journal, read_journal, read_present
from parallax_core.checkpoint.reader import (
    INDEX,
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    TensorLocation,
    find_locations,
    find_missing,
    read_index,
)

__all__ = [
    "CONFIG",
    "INDEX",
    "LENGTH_BYTES",
    "MOST_HEADER_BYTES",
    "POOLING",
    "SINGLE",
    "TOKENIZER",
    "ByteRange",
    "ByteRanges",
    "FetchedRange",
    "TensorLocation",
    "check_folder",
    "find_locations",
    "find_missing",
    "find_tokenizer",
    "hint_for",
    "is_in_layout",
    "name_journal",
    "read_index",
    "read_journal",
    "read_present",
    "read_shards",
]
