"""The small operations of a layer on any device: kernels on a CPU and on CUDA, PyTorch elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from parallax_backend_torch.device_kernels import DEVICE_KERNELS
from parallax_backend_torch.kernels import attention, parts
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.page_grid import Grid, Sight
from parallax_backend_torch.step import SlotMapping

if TYPE_CHECKING:
    from parallax_backend_torch.weights import Weights


@dataclass(frozen=True, eq=False, slots=True)
class Norm:
    """Root mean square normalisation (arXiv 1910.07467) over the last dimension."""

    weight: torch.Tensor
    """float32 of shape [width]."""
    eps: float
    offset: float = 0.0
    """1 if the weight is stored as its difference from 1, else 0."""

    @classmethod
    def read(cls, weights: Weights, name: str, eps: float, offset: float = 0.0) -> Norm:
        """Read ``NAME.weight``."""
        return cls(weights.read_vector(f"{name}.weight"), eps, offset)

    @classmethod
    def plain(cls, weights: Weights, width: int, eps: float) -> Norm:
        """Return a norm without weights of its own, on the device of ``weights``."""
        return cls(weights.factory.make_vector(torch.ones(width)), eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, in float32."""
        if x.device.type == "cpu":
            return parts.normalize_rms(x, self.weight, self.eps, self.offset)
        if kernels := DEVICE_KERNELS.find(x.device):
            found: torch.Tensor = kernels.normalize_rms(x, self.weight, self.eps, self.offset)
            return found
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (self.weight + self.offset)).to(x.dtype)


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Rotate heads in place: [tokens, heads, width], by the cosines and sines of each token."""
    cos, sin = angles
    if x.device.type == "cpu":
        parts.rotate_halves(x, cos, sin)
        return
    if kernels := DEVICE_KERNELS.find(x.device):
        kernels.rotate_halves(x, cos, sin)
        return
    half = cos.shape[1]
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def place_heads(
    mixed: torch.Tensor,
    norms: Sequence[Norm],
    angles: tuple[torch.Tensor, torch.Tensor],
    pool: Pool,
    slots: torch.Tensor,
) -> bool:
    """Normalise and rotate queries in place, and store normalised and rotated keys, and values, in one kernel.

    Args:
        mixed: the queries, keys and values of each token, [tokens, heads, width].
        norms: the norms of queries and of keys; empty without norms.
        angles: the cosines and sines of each token.
        pool: keys and values of a layer.
        slots: the slots of the tokens.

    Returns:
        Whether there is such a kernel; without, nothing is done.
    """
    kernels = DEVICE_KERNELS.find(mixed.device)
    if kernels is None or pool.keys.dtype != mixed.dtype or pool.keys.shape != pool.values.shape:
        return False
    kernels.place_heads(mixed, angles, (pool.keys, pool.values), slots, norms)
    return True


def attend(query: torch.Tensor, pool: Pool, places: SlotMapping, rule: Rule) -> torch.Tensor:
    """Return the attention of each query to its row's keys and values in the pool, including new tokens.

    Args:
        query: [tokens, heads, width].
        pool: keys and values of a layer.
        places: the slots of the rows in the pool.
        rule: the tokens that a query sees.
    """
    if query.device.type == "cpu":
        return attention.attend(query, pool, places.rows, rule)
    assert isinstance(places, Grid), "on other devices rows lie in grids"
    return attend_rectangles(query, pool, places, rule)


def store(pool: Pool, keys: torch.Tensor, values: torch.Tensor, places: SlotMapping) -> None:
    """Write the keys and values of the new tokens, [tokens, heads, width] each, to their slots."""
    if keys.device.type == "cpu":
        attention.store(pool, keys, values, places.slots)
        return
    pool.keys[places.slots] = keys.to(pool.keys.dtype)
    pool.values[places.slots] = values.to(pool.values.dtype)


def attend_rectangles(query: torch.Tensor, pool: Pool, grid: Grid, rule: Rule) -> torch.Tensor:
    """Compute `attend` one rectangle of rows of equal length at a time, with a kernel or PyTorch's own attention."""
    parts, done, kernels = [], 0, _find_kernels(query, pool, rule)
    for table in grid.tables:
        count = len(table.starts) * table.tokens
        rows = query[done : done + count].unflatten(0, (-1, table.tokens))
        if kernels is None:
            found = _attend_group(rows, pool, grid.find_sight(table, rule.window), rule)
        else:
            where, limits = (table.starts, table.bases, table.pages), (rule.scale, rule.window)
            found = kernels.attend_pages(rows, (pool.keys, pool.values), where, table.page_size, limits)
        parts.append(found.flatten(0, 1))
        done += count
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _find_kernels(query: torch.Tensor, pool: Pool, rule: Rule) -> ModuleType | None:
    """Return the kernels that can compute an attention, or None."""
    kernels = DEVICE_KERNELS.find(query.device)
    if kernels is None or rule.sinks is not None or rule.soft_cap or query.shape[2] > kernels.WIDEST:
        return None
    is_alike = pool.keys.dtype == query.dtype and pool.keys.shape == pool.values.shape
    return kernels if is_alike else None


def _attend_group(query: torch.Tensor, pool: Pool, sight: Sight, rule: Rule) -> torch.Tensor:
    """Return the attention of rows of equal length, [rows, tokens, heads, width], with PyTorch."""
    keys, values = (each[sight.slots].to(query.dtype).transpose(1, 2) for each in (pool.keys, pool.values))
    if rule.sinks is not None or rule.soft_cap:
        turned = query.transpose(1, 2)
        return _attend_plainly(turned, keys, values, (sight.mask[:, None], rule)).transpose(1, 2)
    if query.shape[1] > 1:
        rows = zip(query, keys, values, sight.mask, strict=True)
        return torch.stack([_attend_chunk(*row, rule.scale) for row in rows])
    # With one token per row, heads that share keys become tokens of one head: no key is repeated, and any kernel works.
    shared = query[:, 0].unflatten(1, (keys.shape[1], -1))
    found = functional.scaled_dot_product_attention(shared, keys, values, sight.mask[:, None], scale=rule.scale)
    return found.flatten(1, 2)[:, None]


def _attend_chunk(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the attention of one row: [tokens, heads, width].

    Each head of keys becomes a batch, and the heads that share it are its heads: so they see the same memory without a
    copy, and PyTorch can take a kernel that does not keep the scores. With a mask, its ``enable_gqa`` would take the
    one that keeps them all, in float32.
    """
    shared = query.unflatten(1, (keys.shape[0], -1)).permute(1, 2, 0, 3)
    keys, values = (each[:, None].expand(-1, shared.shape[1], -1, -1) for each in (keys, values))
    found = functional.scaled_dot_product_attention(shared, keys, values, mask[None, None], scale=scale)
    return found.permute(2, 0, 1, 3).flatten(1, 2)


def _attend_plainly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rest: tuple[torch.Tensor, Rule]
) -> torch.Tensor:
    mask, rule = rest
    times = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(times, 1), values.repeat_interleave(times, 1)
    scores = (query @ keys.transpose(-1, -2)).float() * rule.scale
    if rule.soft_cap:
        scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    scores = scores.masked_fill(~mask, -math.inf)
    if rule.sinks is not None:
        nothing = rule.sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, nothing], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    return weights.to(query.dtype) @ values
