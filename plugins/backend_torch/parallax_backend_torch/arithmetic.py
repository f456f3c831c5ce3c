"""The small operations of a layer, on whatever device: kernels on a CPU, PyTorch elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.kernels import attention, parts
from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.step import Places


@dataclass(frozen=True, eq=False, slots=True)
class Norm:
    """Root mean square normalisation (arXiv 1910.07467) over the last dimension."""

    weight: torch.Tensor
    """float32 of shape [width]."""
    eps: float
    offset: float = 0.0
    """1 where the weight is kept as its difference from 1."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise; float32 in between."""
        if x.device.type == "cpu":
            return parts.normalize_rms(x, self.weight, self.eps, self.offset)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (self.weight + self.offset)).to(x.dtype)


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Rotate heads in place: [tokens, heads, width], by the cosines and sines of each token."""
    cos, sin = angles
    if x.device.type == "cpu":
        parts.rotate_halves(x, cos, sin)
        return
    half = cos.shape[1]
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def attend(query: torch.Tensor, pool: Pool, places: Places, rule: Rule) -> torch.Tensor:
    """Return the attention of each query to what its row has in the pool, the new tokens included.

    Args:
        query: [tokens, heads, width].
        pool: keys and values of a layer.
        places: where the rows lie in it.
        rule: what a query sees.
    """
    if query.device.type == "cpu":
        return attention.attend(query, pool, places.rows, rule)
    return attend_rectangles(query, pool, places, rule)


def store(pool: Pool, keys: torch.Tensor, values: torch.Tensor, places: Places) -> None:
    """Write the keys and values of the new tokens, [tokens, heads, width] each, where they belong."""
    if keys.device.type == "cpu":
        attention.store(pool, keys, values, places.slots)
        return
    pool.keys[places.slots] = keys.to(pool.keys.dtype)
    pool.values[places.slots] = values.to(pool.values.dtype)


def attend_rectangles(query: torch.Tensor, pool: Pool, places: Places, rule: Rule) -> torch.Tensor:
    """Compute what `attend` says by PyTorch's own attention: decodes as one rectangle, other rows one by one."""
    out = torch.empty_like(query)
    counts, place = places.line.counts, 0
    decodes = [row for row, count in enumerate(counts) if count == 1]
    firsts = []
    for row, count in enumerate(counts):
        firsts.append(place)
        if count > 1:
            out[place : place + count] = _attend_group(query[None, place : place + count], pool, places, ([row], rule))[
                0
            ]
        place += count
    if decodes:
        chosen = torch.tensor([firsts[row] for row in decodes], device=query.device)
        out[chosen] = _attend_group(query[chosen, None], pool, places, (decodes, rule))[:, 0]
    return out


def _attend_group(query: torch.Tensor, pool: Pool, places: Places, group: tuple[list[int], Rule]) -> torch.Tensor:
    """Return the attention of rows of one length: [rows, tokens, heads, width]."""
    numbers, rule = group
    rows, device = places.rows, query.device
    picked = torch.tensor(numbers)
    starts = rows.starts[picked].to(torch.int64)
    asked = starts[:, None] + torch.arange(query.shape[1])
    low = (starts - rule.window + 1).clamp(min=0) if rule.window else torch.zeros_like(starts)
    seen = low[:, None] + torch.arange(int((asked[:, -1] + 1 - low).max()))
    inside = seen <= asked[:, -1:]
    at = torch.where(inside, seen, asked[:, -1:])
    pages = rows.pages[rows.offsets[picked].to(torch.int64)[:, None] + at // rows.page_size].to(torch.int64)
    slots = (pages * rows.page_size + at % rows.page_size).to(device)
    distance = asked[:, :, None] - seen[:, None, :]
    visible = (distance >= 0) & inside[:, None]
    visible = visible & (distance < rule.window) if rule.window else visible
    keys, values = (each[slots].to(query.dtype).transpose(1, 2) for each in (pool.keys, pool.values))
    turned, mask = query.transpose(1, 2), visible.to(device)[:, None]
    if rule.sinks is None and not rule.soft_cap:
        found = functional.scaled_dot_product_attention(
            turned, keys, values, attn_mask=mask, scale=rule.scale, enable_gqa=True
        )
    else:
        found = _attend_plainly(turned, keys, values, (mask, rule))
    return found.transpose(1, 2)


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
