"""Finds the sequences that share a prefix with a new prompt: a radix tree over tokens.

A stored sequence keeps its pages on every stage; a request with the same prefix is a fork of it. The tree holds no
pages, and no token twice: an edge is a run of tokens as bytes, so that the C library compares them. The caller makes
the bytes of a key once and uses them for every look-up.
(Radix trees for prefix reuse: SGLang's RadixAttention, arXiv 2312.07104.)
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from parallax_core.base.ids import SeqId

ITEM = 8
"""Bytes per token in a key: a token id, or a hash of content that a placeholder token stands for."""


def make_key(tokens: Iterable[int]) -> bytes:
    """Return tokens as a key of the index, `ITEM` bytes each, so that a slice of a key is the key of a slice."""
    return array("Q", tokens).tobytes()


@dataclass(frozen=True, slots=True)
class Match:
    """A stored sequence that begins with the first ``length`` tokens asked for."""

    seq: SeqId
    length: int


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A node of the tree; it stands for the tokens on the edges from the root to it."""

    edge: bytes
    parent: PrefixNode | None
    children: dict[bytes, PrefixNode] = field(default_factory=dict)
    """The children by the first token of their edge."""
    seqs: dict[SeqId, None] = field(default_factory=dict)
    """The sequences that end here, in order of arrival."""


class PrefixIndex:
    """Sequences by their tokens, as keys from `make_key`.

    Sequences of different spaces never match: a space is everything else that must be equal, such as the adapter, the
    version of the weights, and the salt. Matching and inserting take time proportional to the tokens of the key.
    """

    def __init__(self) -> None:
        self._roots: dict[Hashable, PrefixNode] = {}
        self._ends: dict[SeqId, tuple[Hashable, PrefixNode]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, seq: object) -> bool:
        return seq in self._ends

    def __iter__(self) -> Iterator[SeqId]:
        return iter(self._ends)

    def insert(self, space: Hashable, key: bytes, seq: SeqId) -> None:
        """Store ``seq``, whose tokens are ``key``.

        Raises:
            KeyError: if it is stored already.
        """
        if seq in self._ends:
            message = f"sequence {seq} is stored already"
            raise KeyError(message)
        node, done = self._roots.setdefault(space, PrefixNode(b"", None)), 0
        while done < len(key):
            child = node.children.get(key[done : done + ITEM]) or _add_child(node, key[done:])
            common = _count_common(child.edge, key, done)
            node = child if common == len(child.edge) else _split(child, common)
            done += common
        node.seqs[seq] = None
        self._ends[seq] = (space, node)

    def match(self, space: Hashable, key: bytes) -> Iterator[Match]:
        """Yield the stored sequences that share a prefix with ``key``, longest prefix first, one for each length.

        The first has the longest common prefix and may continue differently; the others end exactly at their length,
        for pools in which a sequence can only be forked at its end.
        """
        if space not in self._roots:
            return
        node, done = self._roots[space], 0
        while child := node.children.get(key[done : done + ITEM]):
            common = _count_common(child.edge, key, done)
            if common < len(child.edge):
                yield Match(_find_seq(child), (done + common) // ITEM)
                break
            node, done = child, done + common
        else:
            if done and not node.seqs:
                yield Match(_find_seq(node), done // ITEM)
        yield from _list_ends(node, done)

    def remove(self, seq: SeqId) -> None:
        """Remove a stored sequence.

        Raises:
            KeyError: if it is not stored.
        """
        space, node = self._ends.pop(seq)
        del node.seqs[seq]
        _prune(node)
        root = self._roots[space]
        if not root.children and not root.seqs:
            del self._roots[space]

    def check(self) -> None:
        """Check that the tree is compact: every node has a sequence, or several children; for tests."""
        assert all(root.seqs or root.children for root in self._roots.values())
        nodes = list(self._roots.values())
        for node in nodes:
            nodes += node.children.values()
            assert all(child.parent is node and child.edge for child in node.children.values())
            assert node.parent is None or node.seqs or len(node.children) > 1


def _count_common(edge: bytes, key: bytes, start: int) -> int:
    """Return the number of bytes, in whole tokens, that ``edge`` and ``key`` from ``start`` on have in common."""
    if key.startswith(edge, start):
        return len(edge)
    low, high = 0, min(len(edge), len(key) - start) // ITEM
    if edge.startswith(key[start : start + high * ITEM]):
        return high * ITEM
    while low + 1 < high:  # tokens up to low are equal, those up to high are not
        middle = (low + high) // 2
        if edge[low * ITEM : middle * ITEM] == key[start + low * ITEM : start + middle * ITEM]:
            low = middle
        else:
            high = middle
    return low * ITEM


def _add_child(node: PrefixNode, edge: bytes) -> PrefixNode:
    child = node.children[edge[:ITEM]] = PrefixNode(edge, node)
    return child


def _split(node: PrefixNode, size: int) -> PrefixNode:
    """Insert a node after the first ``size`` bytes of the edge of ``node``, and return it."""
    assert node.parent is not None
    upper = node.parent.children[node.edge[:ITEM]] = PrefixNode(node.edge[:size], node.parent)
    node.edge, node.parent = node.edge[size:], upper
    upper.children[node.edge[:ITEM]] = node
    return upper


def _find_seq(node: PrefixNode) -> SeqId:
    """Return a sequence that ends at ``node`` or below: every leaf has one."""
    while not node.seqs:
        node = node.children[next(reversed(node.children))]
    return next(reversed(node.seqs))


def _list_ends(node: PrefixNode, depth: int) -> Iterator[Match]:
    """Yield a sequence that ends at ``node``, at its parent, and so on up to the root."""
    while node.parent is not None:
        if node.seqs:
            yield Match(next(reversed(node.seqs)), depth // ITEM)
        depth -= len(node.edge)
        node = node.parent


def _prune(node: PrefixNode) -> None:
    """Remove empty leaves from ``node`` upwards, then merge a node without sequences into its only child."""
    while node.parent is not None and not node.seqs and not node.children:
        del node.parent.children[node.edge[:ITEM]]
        node = node.parent
    if node.parent is not None and not node.seqs and len(node.children) == 1:
        [child] = node.children.values()
        child.edge, child.parent = node.edge + child.edge, node.parent
        node.parent.children[child.edge[:ITEM]] = child
