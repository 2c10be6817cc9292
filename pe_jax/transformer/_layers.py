# SPDX-License-Identifier: Apache-2.0
"""What encodings do in the attention of each layer."""

import collections
from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

import pe_jax
from pe_jax.transformer._config import Config

Array = jax.Array


class Layer(NamedTuple):
  """What differs from layer to layer."""

  encoding: pe_jax.Encoding
  window: int | None


def plan(config: Config, encoding) -> tuple[pe_jax.Encoding, tuple[Layer, ...]]:
  """Finds what acts on the embedding, and the encoding and window of every layer."""
  encodings = encoding if isinstance(encoding, tuple) else (encoding,)
  windows = config.window if isinstance(config.window, tuple) else (config.window,)
  for name, pattern in {'encodings': encodings, 'windows': windows}.items():
    if not 1 <= len(pattern) <= config.layers:
      raise ValueError(
          f'{len(pattern)} {name} repeat over layers={config.layers}: give 1 to {config.layers}.'
      )
  sites = [pe_jax.sites(encoding) for encoding in encodings]
  embedding = tuple(dict.fromkeys(first for first, _ in sites if first.embed)) or (pe_jax.none(),)
  if len(embedding) > 1:
    raise ValueError(f'{embedding} act on the one embedding of the model: keep one of them.')
  layers = (
      Layer(sites[i % len(sites)][1], windows[i % len(windows)]) for i in range(config.layers)
  )
  return embedding[0], tuple(layers)


def as_params(arrays: pe_jax.base.Arrays) -> pe_jax.base.Arrays:
  """Makes every array a float32 parameter."""
  # Also where it is float32 already: Python's numbers leave a weak type, which would retrace.
  return jax.tree.map(lambda leaf: nnx.Param(jnp.asarray(leaf, jnp.float32)), arrays)


class LayerEncodings(nnx.Module):
  """What encodings do in the attention of every layer, and the arrays that they train."""

  def __init__(self, config: Config, layers: tuple[Layer, ...], *, rngs: nnx.Rngs):
    self.config = config
    self.layers = layers
    self.counts = tuple(collections.Counter(layer.encoding for layer in layers).items())
    self.params = nnx.data(tuple(self._init(*each, rngs.params()) for each in self.counts))

  def _init(self, encoding: pe_jax.Encoding, count: int, key: Array) -> pe_jax.base.Arrays:
    def init(key):
      return encoding.init(key, self.config.dims)

    untied = self.config.sharing == 'untied'
    params = jax.vmap(init)(jax.random.split(key, count)) if untied else init(key)
    return as_params(params)

  def attention(self, **options) -> Callable:
    """Returns attend(i, x, q, k, v), what layer i does; i may be traced. See `_attend`."""
    dims, untied = self.config.dims, self.config.sharing == 'untied'
    arrays = {}
    for (encoding, count), params in zip(self.counts, nnx.as_pure(self.params), strict=True):
      assemble = functools.partial(pe_jax.assemble, encoding, dims=dims)
      arrays[encoding] = (jax.vmap(assemble, axis_size=count) if untied else assemble)(params)
    kinds = tuple(dict.fromkeys(self.layers))
    branches = [
        functools.partial(_attend, layer=kind, arrays=arrays[kind.encoding], dims=dims, **options)
        for kind in kinds
    ]
    encodings = [layer.encoding for layer in self.layers]
    kind = jnp.array([kinds.index(layer) for layer in self.layers])
    copy = jnp.array([encodings[:i].count(encoding) for i, encoding in enumerate(encodings)])

    def attend(i, x, q, k, v):
      return jax.lax.switch(kind[i], branches, copy[i] if untied else None, x, q, k, v)

    return attend


def _attend(copy, x, q, k, v, *, layer, arrays, dims, mask, positions, length, kernel) -> Array:
  """Attends in one layer; `copy` is the layer's own among stacked arrays, None for shared ones."""
  encoding = layer.encoding
  if copy is not None:
    arrays = jax.tree.map(lambda leaf: leaf[copy], arrays)
  if encoding.place is not None:
    tokens = x.shape[:-1]
    segments = jnp.ones(tokens, jnp.int32) if mask.q_segments is None else mask.q_segments
    positions = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, tokens), positions)
    carry = pe_jax.initial_carry(encoding, dims, tokens[:-1])
    positions, _ = encoding.place(arrays, x, positions, segments, carry)
  mask = dataclasses.replace(mask, window=layer.window)
  attend = functools.partial(pe_jax.attend, encoding=encoding, params=arrays, kernel=kernel)
  return attend(q, k, v, positions, positions, mask=mask, length=length)
