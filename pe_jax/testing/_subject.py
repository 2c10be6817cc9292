# SPDX-License-Identifier: Apache-2.0
"""What the laws look at: one encoding, and arrays that hide nothing."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.base import Arrays
from pe_jax.base import assemble
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.base import initial_carry
from pe_jax.testing import _run
from pe_jax.testing._compare import refusals
from pe_jax.testing._run import Row
from pe_jax.testing._run import Tokens

BATCH = 4
# Distances of all sizes in eight tokens, for row 1; larger ones, not all even, in row 2.
_SPREAD = np.array([2, 3, 5, 9, 14, 22, 35, 57])
_FAR_SPREAD = 8 * _SPREAD + np.array([0, 1, 3, 2, 5, 1, 7, 4])


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
    return tuple(positions * (axis + 1) for axis in range(self.axes))

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
    return _run.place(self.params, x, positions, segments, carry, encoding=self.encoding)

  def place_eagerly(self, tokens: Tokens) -> Any:
    """What `place` returns, not compiled by the kit."""
    batch, size = tokens.x.shape[:2]
    ones, carry = jnp.ones((batch, size), jnp.int32), self.carry(batch)
    return self.encoding.place(self.params, tokens.x, tokens.positions, ones, carry)

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
    return jax.tree.map(np.asarray, _run.hooks(params, tokens, encoding=self.encoding))

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
      out = _run.layer(
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
