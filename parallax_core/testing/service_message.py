"""The kit for the messages of a node service: their tags, sizes and bounds, and how they refuse junk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from parallax_core.contracts.node_service import MessageKinds, NodeServiceSpec
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.contracts.transport import Frame
from parallax_core.testing.promise import broken
from parallax_core.wire.codec import ENCODER, VERSION_BYTE, check_tag, decode, encode, index_kinds
from parallax_core.wire.errors import BadFrame

JUNK: tuple[object, ...] = (None, True, 0, -1, 2**63, float("nan"), "", "x" * 300, b"\xff", [], [[]] * 300, {"a": None})
TAGS = "Any other distribution has `TAGS_OF_ONE` tags, which follow from its name"
SIZE = "The most bytes of its header in a frame"
BOUND = "Bound the length of every text, array and byte string by its type"
FITS = "Check the fields against each other, on arrival"
CHECKS = "if they do not fit; the link ends then"
ALL = "All its messages"


class MessageConformance:
    """Tests for the messages of a node service."""

    spec: NodeServiceSpec
    """The service."""
    distribution: str
    """The distribution that offers it, from whose name the tags of its messages follow."""
    samples: Sequence[ServiceMessage]
    """At least one message of each kind, with the largest contents that it has in practice."""

    @property
    def kinds(self) -> MessageKinds:
        """All its messages."""
        return self.spec.messages.load()

    def test_tags_are_those_of_the_distribution(self) -> None:
        """Each message has a tag of its own, in the range of the distribution."""
        try:
            index_kinds(self.kinds)
            for kind in self.kinds:
                check_tag(kind, self.distribution)
        except ValueError as error:
            raise AssertionError(broken(str(error), TAGS)) from error

    def test_fields_are_bounded(self) -> None:
        """No text, array or byte string of any length, and nothing of any type."""
        for kind in self.kinds:
            loose = sorted(set(find_loose(msgspec.inspect.type_info(kind))))
            assert not loose, broken(f"a {kind.__name__} holds {', '.join(loose)} without a bound", BOUND)

    def test_samples_arrive_as_they_were_sent(self) -> None:
        """Each message fits into its largest size, and is accepted with the same contents."""
        missing = {kind.__name__ for kind in self.kinds} - {type(sample).__name__ for sample in self.samples}
        assert not missing, broken(f"there is no sample of {', '.join(sorted(missing))}", ALL)
        for sample in self.samples:
            try:
                arrived = self.read(encode(sample.tidy()))
            except ValueError as error:
                raise AssertionError(broken(f"{sample!r} cannot be sent: {error}", SIZE)) from error
            assert arrived == sample.tidy(), broken(f"{sample!r} arrives as {arrived!r}", FITS)

    def test_junk_is_refused(self) -> None:
        """Bytes that are cut off, a field too many, and fields that its check does not expect."""
        for sample in self.samples:
            header = encode(sample.tidy()).header
            for frame in (write_frame([*read_fields(sample), 0]), Frame(header[:-1])):
                assert self.read(frame) is None, broken(f"a {type(sample).__name__} with junk is accepted", FITS)
            self.list_variants(sample)

    def read(self, frame: Frame) -> ServiceMessage | None:
        """Return the message of a frame as a node takes it, or None if it is refused."""
        try:
            message = decode(frame, kinds=index_kinds(self.kinds))
        except BadFrame:
            return None
        except Exception as error:
            raise AssertionError(broken(f"{frame!r} makes its check raise {error!r}", CHECKS)) from error
        assert isinstance(message, ServiceMessage), broken(f"{message!r} is a message of core", TAGS)
        return message.tidy()

    def list_variants(self, sample: ServiceMessage) -> list[ServiceMessage]:
        """Return the messages that are accepted with junk in one field of a sample."""
        fields = read_fields(sample)
        junk = [[*fields[:i], each, *fields[i + 1 :]] for i in range(1, len(fields)) for each in JUNK]
        read = [self.read(write_frame(each)) for each in junk]
        return [message for message in read if message is not None]


def read_fields(message: ServiceMessage) -> list[Any]:
    """Return the fields of a message as they are sent, its tag first."""
    fields: list[Any] = msgspec.msgpack.decode(ENCODER.encode(message))
    return fields


def write_frame(fields: list[Any]) -> Frame:
    """Return a frame with these fields."""
    return Frame(VERSION_BYTE + ENCODER.encode(fields))


def find_loose(found: Any) -> Iterator[str]:  # noqa: ANN401 -- a type or a field, as msgspec describes them
    """Yield the kinds of contents in a type that have no bound."""
    kind = type(found).__name__.removesuffix("Type")
    if kind in {"Any", "Raw", "Custom"} or getattr(found, "max_length", 0) is None:
        yield kind
    for name in found.__struct_fields__:
        value = getattr(found, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from find_loose(inner)
