# SPDX-License-Identifier: Apache-2.0
"""What the laws look at: one encoding, arrays that hide nothing, and ways to run it."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attend
from pe_jax.base import Arrays
from pe_jax.base import assemble
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.base import initial_carry
from pe_jax.kernels._dense import repeat_heads
from pe_jax.masks import Mask
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import Violation

Array = jax.Array

BATCH = 4
# Distances of all sizes in eight tokens, for row 1; larger ones, not all even, in row 2.
_SPREAD = np.array([2, 3, 5, 9, 14, 22, 35, 57])
_FAR_SPREAD = 8 * _SPREAD + np.array([0, 1, 3, 2, 5, 1, 7, 4])


class Tokens(NamedTuple):
  """All that hooks read, T queries over S keys."""

  x: Array  # [B, S, D]
  positions: Any  # [B, S]
  q: Array  # [B, T, N, H]
  k: Array  # [B, S, K, H]
  q_coords: Any  # [B, T]
  k_coords: Any  # [B, S]
  logits: Array  # [B, N, T, S]
  weights: Array  # [B, N, T, S]
  mask: Array  # [B, 1, T, S]
  length: Array  # [B]
  scale: Array  # []


# --- Running an encoding -------------------------------------------------------------------------


def run_hooks(params: Arrays, tokens: Tokens, *, encoding: Encoding) -> dict[str, Array]:
  """Calls every hook that the encoding has, except `place`."""
  t = tokens
  k = repeat_heads(t.k, t.q.shape[-2])
  arguments = {
      'embed': (t.x, t.positions),
      'query': (t.q, t.q_coords, t.length),
      'key': (t.k, t.k_coords, t.length),
      'bias': (t.q, k, t.q_coords, t.k_coords, t.scale),
      'logits': (t.logits, t.q, k, t.q_coords, t.k_coords, t.mask),
      'value': (t.weights, t.q_coords, t.k_coords),
  }
  out = {
      name: getattr(encoding, name)(params, *args)
      for name, args in arguments.items()
      if getattr(encoding, name) is not None
  }
  if 'bias' in out:
    out['bias'] = _with_batch(out['bias'], jnp.shape(t.logits))
  return out


def _with_batch(bias: Array, shape: tuple[int, ...]) -> Array:
  """Repeats a bias over the rows, where they share the positions."""
  if bias.shape[-3:] != shape[-3:]:
    raise Violation(f'bias has shape {bias.shape}, not {shape}')
  return jnp.broadcast_to(bias, shape)


hooks = jax.jit(run_hooks, static_argnames='encoding')


def run_place(params, x, positions, segments, carry, *, encoding: Encoding):
  """Calls `place`, or passes the positions on where there is none."""
  if encoding.place is None:
    return positions, carry
  return encoding.place(params, x, positions, segments, carry)


place = jax.jit(run_place, static_argnames='encoding')


def project(x: Array, weights: Arrays) -> tuple[Array, Array, Array]:
  """Computes q, k, v from the hidden state."""
  q = jnp.einsum('...td,dnh->...tnh', x, weights['q'])
  k = jnp.einsum('...td,dnh->...tnh', x, weights['k'])
  v = jnp.einsum('...td,dnh->...tnh', x, weights['v'])
  bias = weights['v_bias'].reshape((1,) * (v.ndim - 2) + weights['v_bias'].shape)
  return q, k, v + bias


class Row(NamedTuple):
  """What one attention layer reads, T tokens over themselves."""

  x: Array  # [B, T, D]
  positions: Any  # [B, T]
  segments: Array  # [B, T]
  index: tuple[Array, Array]  # order of queries and of keys, [B, T] each; later keys are hidden
  dense: Array  # who may see whom besides, [B, 1, T, T]
  length: Array  # [B]


def run_layer(params, weights, row: Row, *, encoding, dims: Dims, kernel=None) -> Array:
  """Embeds, projects, places and attends: an encoding as a model uses it, [B, T, N, H]."""
  x = row.x
  if encoding.embed is not None:
    x = encoding.embed(params, x, row.positions)
  q, k, v = project(x, weights)
  carry = initial_carry(encoding, dims, x.shape[:-2])
  coords, _ = run_place(params, x, row.positions, row.segments, carry, encoding=encoding)
  mask = Mask(
      causal=True,
      q_segments=row.segments,
      k_segments=row.segments,
      q_index=row.index[0],
      k_index=row.index[1],
      dense=row.dense,
  )
  return attend(
      q,
      k,
      v,
      coords,
      coords,
      encoding=encoding,
      params=params,
      mask=mask,
      length=row.length,
      kernel=kernel,
  )


layer = jax.jit(run_layer, static_argnames=('encoding', 'dims', 'kernel'))


# --- The subject ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
  """An encoding under test and small inputs for it.

  Attributes:
    factory: makes the encoding.
    dims: sizes of the model.
    options: other values to try, by name of the option.
    reference: float64 numpy functions by name of the hook.
    kernel: what `attend` computes with.
    axes: how many arrays the positions are; None for one that is no tuple.
    size: number of tokens.
  """

  factory: Callable[[], Encoding]
  dims: Dims
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  reference: dict[str, Callable] = dataclasses.field(default_factory=dict)
  kernel: Callable | None = None
  axes: int | None = None
  size: int = 8

  @functools.cached_property
  def encoding(self) -> Encoding:
    """The record."""
    return self.factory()

  @functools.cached_property
  def trained(self) -> Arrays:
    """The trained arrays, moved off their start so that zeros hide nothing."""
    rng = np.random.default_rng(1)

    def perturb(leaf):
      noise = rng.normal(size=leaf.shape)
      return jnp.asarray(np.asarray(leaf) + 0.3 * noise.astype(leaf.dtype), leaf.dtype)

    return jax.tree.map(perturb, self.encoding.init(jax.random.key(0), self.dims))

  @functools.cached_property
  def params(self) -> Arrays:
    """All arrays, trained and constant."""
    return jax.tree.map(jnp.asarray, assemble(self.encoding, self.trained, self.dims))

  @property
  def limit(self) -> int:
    """The number of positions that may be used."""
    most = self.encoding.max_length
    return 2**22 if most is None else most

  # --- Inputs ---

  def spread(self, positions: np.ndarray) -> Any:
    """Returns positions as the encoding takes them: an array, or one for each axis."""
    positions = np.asarray(positions)
    if self.axes is None:
      return positions
    return tuple(positions // (axis + 1) for axis in range(self.axes))

  @functools.cached_property
  def positions(self) -> np.ndarray:
    """Positions of four rows: counted, spread, far spread, and repeated in any order."""
    step = min(1.0, (self.limit - 1) / _FAR_SPREAD.max())
    near = np.minimum(_SPREAD, self.limit - 1)[: self.size]
    far = np.floor(_FAR_SPREAD * step)[: self.size]
    mixed = np.array([4, 0, 7, 7, 1, 30, 4, 12])[: self.size]
    mixed = np.minimum(mixed, self.limit - 1)
    return np.stack([np.arange(self.size), near, far, mixed]).astype(np.int32)

  @functools.cached_property
  def weights(self) -> Arrays:
    """Random projections of one layer."""
    rng, d = np.random.default_rng(2), self.dims
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return {
        'q': normal(d.model, d.heads, d.head_dim) * d.model**-0.5,
        'k': normal(d.model, d.kv_heads, d.head_dim) * d.model**-0.5,
        'v': normal(d.model, d.kv_heads, d.head_dim) * d.model**-0.5,
        'v_bias': np.zeros((d.kv_heads, d.head_dim), np.float32),
    }

  @functools.cached_property
  def x(self) -> np.ndarray:
    """Hidden states of four rows."""
    shape = (BATCH, self.size, self.dims.model)
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)

  def carry(self, batch: int = BATCH, dims: Dims | None = None) -> Any:
    """The carry of `place` at the start."""
    return initial_carry(self.encoding, dims or self.dims, (batch,))

  def place(self, x, positions, segments=None, carry=None) -> Any:
    """The coordinates that the encoding makes of positions."""
    batch, size = x.shape[:2]
    segments = np.ones((batch, size), np.int32) if segments is None else segments
    carry = self.carry(batch) if carry is None else carry
    return place(self.params, x, positions, segments, carry, encoding=self.encoding)

  def tokens(self, positions: np.ndarray | None = None, dtype=np.float32, seed=4) -> Tokens:
    """Random arguments for every hook, at the given positions [B, T]."""
    positions = self.positions if positions is None else positions
    batch, size = positions.shape
    rng, d = np.random.default_rng(seed), self.dims
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    x = normal(batch, size, d.model)
    spread = self.spread(positions)
    coords = spread if self.encoding.place is None else self.place(x, spread)[0]
    order = np.arange(size)
    causal = order[:, None] >= order[None, :]
    mask = np.broadcast_to(causal, (batch, 1, size, size))
    weights = np.exp(normal(batch, d.heads, size, size))
    tokens = Tokens(
        x=x.astype(dtype),
        positions=spread,
        q=normal(batch, size, d.heads, d.head_dim).astype(dtype),
        k=normal(batch, size, d.kv_heads, d.head_dim).astype(dtype),
        q_coords=coords,
        k_coords=coords,
        logits=normal(batch, d.heads, size, size),
        weights=weights / weights.sum(-1, keepdims=True),
        mask=mask,
        length=_length(positions, np.resize([56, 40, 500, 5000], batch)),
        scale=np.float32(d.head_dim**-0.5),
    )
    return jax.tree.map(np.asarray, tokens)

  def hooks(self, tokens: Tokens, params: Arrays | None = None) -> dict[str, np.ndarray]:
    """What every hook returns, compiled."""
    params = self.params if params is None else params
    return jax.tree.map(np.asarray, hooks(params, tokens, encoding=self.encoding))

  def row(self, **given) -> Row:
    """A causal layer's arguments, but for those that are given; positions are plain [B, T]."""
    batch, size = given.get('x', self.x).shape[:2]
    order = np.broadcast_to(np.arange(size, dtype=np.int32), (batch, size))
    positions = given.get('positions', self.positions)
    filled = {
        'x': self.x,
        'positions': positions,
        'segments': np.ones((batch, size), np.int32),
        'index': (order, order),
        'dense': np.ones((batch, 1, size, size), bool),
        'length': _length(positions, 16),
        **given,
    }
    return Row(**{**filled, 'positions': self.spread(positions)})

  def layer(self, weights: Arrays | None = None, **given) -> np.ndarray:
    """What a layer returns, compiled; see `row`."""
    weights = self.weights if weights is None else weights
    with refusals(self.kernel):
      out = layer(
          self.params,
          weights,
          self.row(**given),
          encoding=self.encoding,
          dims=self.dims,
          kernel=self.kernel,
      )
    return np.asarray(out)

  @property
  def everyone(self) -> tuple[np.ndarray, np.ndarray]:
    """Token orders under which a query sees every key, unless the encoding must be causal."""
    order = np.broadcast_to(np.arange(self.size, dtype=np.int32), (BATCH, self.size))
    return (order if self.encoding.causal_only else np.full_like(order, self.size)), order


def _length(positions: np.ndarray, more: int | np.ndarray) -> np.ndarray:
  """A length that holds the positions [B, T] of every row, and more."""
  return (positions.max(axis=-1) + 1 + more).astype(np.int32)
