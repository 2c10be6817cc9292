# SPDX-License-Identifier: Apache-2.0
"""The record `Encoding`: every place where a positional encoding may touch a Transformer.

Letters are jax.nn's: x [..., T, D]; q [..., T, N, H]; k, v [..., S, K, H] (K divides N); weights
and logits [..., N, T, S]; positions [..., T] and [..., S], or a tuple of such arrays.

The contract that every encoding keeps. `pe_jax.testing` holds one law for each line.

 1. Positions are arrays, int or float32, in any order, repeated or not. No hook calls `arange` or
    takes another length than the one it is given.
 2. `bias` is added to the scaled logits. It sees q and k as projected, before `query` and `key`,
    and it is pairwise: entry (n, t, s) depends on head n, token t and token s alone. Any tile and
    any slice of heads therefore equals that part of the whole.
 3. `query` and `key` are token-local.
 4. Positions, angles, distances and biases are float32 whatever the model's dtype. Outputs return
    in the input's dtype; `bias` and `logits` return float32.
 5. Masks come from token order and segments, never from positions.
 6. An encoding acts at one site, `embed` or the attention hooks. Two sites are two encodings,
    composed.
 7. No hook reads or writes anything but its arguments.
 8. Past the end of a table is an error when the positions are concrete, and NaN when they are
    traced.
 9. Gradients are finite everywhere, and non-zero for every trained leaf on a generic input.
10. An option that is given changes the output, equal arguments give equal records, and positions
    that differ are told apart in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax._bind import check_sizes

Array = jax.Array
Arrays = dict[str, Any]  # leaves by name; `compose` nests one dict per part


@dataclasses.dataclass(frozen=True)
class Dims:
  """The sizes an encoding may learn from the model.

  Attributes:
    model: width D of the hidden state.
    heads: number N of query heads.
    kv_heads: number K of key and value heads, N unless given.
    head_dim: width H of a head, D / N unless given.

  Raises:
    ValueError: a size is not a positive integer, or one does not divide the other.

  >>> Dims(model=64, heads=4)
  Dims(model=64, heads=4, kv_heads=4, head_dim=16)
  """

  model: int
  heads: int
  kv_heads: int | None = None
  head_dim: int | None = None

  def __post_init__(self):
    check_sizes(model=self.model, heads=self.heads)
    if self.head_dim is None and self.model % self.heads:
      raise ValueError(
          f'model={self.model} does not divide into heads={self.heads}: choose a multiple of the '
          'heads, or give head_dim.'
      )
    object.__setattr__(self, 'kv_heads', self.heads if self.kv_heads is None else self.kv_heads)
    object.__setattr__(
        self, 'head_dim', self.model // self.heads if self.head_dim is None else self.head_dim
    )
    check_sizes(**dataclasses.asdict(self))
    if self.heads % self.kv_heads:
      raise ValueError(
          f'heads={self.heads} is not a multiple of kv_heads={self.kv_heads}: every key head '
          'serves the same number of query heads.'
      )


# --- The record ----------------------------------------------------------------------------------


def nothing(*args) -> Arrays:
  """The `init` or `constants` of an encoding that has no arrays of that kind."""
  del args
  return {}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Encoding:
  """Where a positional encoding acts; a field that is None does not act.

  Hooks are module-level functions, or `bind(function, option=...)`. `params` is one dict that holds
  the constants and the trained arrays; a hook cannot tell which is which.

  Attributes:
    name: the call that makes the record, as it stands in tables.
    init: (key, dims) -> trained arrays.
    constants: (dims) -> arrays that are never trained. Reads head sizes only.
    place: (params, x, positions, segments, carry) -> (coords, carry). Turns the hidden state x
      [..., T, D] into coordinates that are cached beside the keys, in place of the positions. The
      token axis is the last of every leaf of coords, a head axis stands just before it. Segment 0
      is padding and adds nothing; sums restart where a new segment begins.
    carry: (dims) -> the carry of `place` before the first token of one row, all zeros.
    embed: (params, x, positions) -> x.
    query: (params, q, coords, length) -> q.
    key: (params, k, coords, length) -> k.
    bias: (params, q, k, q_coords, k_coords, scale) -> term of the scaled logits, float32
      [..., N, T, S]. q and k are raw, k repeated to N heads.
    logits: (params, logits, q, k, q_coords, k_coords, mask) -> logits, for what must see a whole
      row. mask is boolean, [..., 1 or N, T, S].
    value: (params, weights, q_coords, k_coords) -> term of the output, [..., T, N, H]. Linear in
      the weights.
    per_head: names of the leaves whose first axis is the head (`part/name` in a composition).
    relative: scores depend on differences of positions only.
    absolute: a token repeated all along the row is told apart.
    causal_only: has no meaning for keys that come after the query.
    length_dependent: `query` or `key` reads the length.
    order_dependent: reads the order in which the tokens stand, not their positions alone.
    reads_content: `bias` or `logits` reads q or k.
    by_distance: `bias` is a function of k_coords - q_coords, and of nothing else.
    max_length: positions from here on are an error.
    parts: what `compose` put together.
    reference: the paper, with its link.
  """

  name: str
  init: Callable = nothing
  constants: Callable = nothing
  place: Callable | None = None
  carry: Callable = nothing
  embed: Callable | None = None
  query: Callable | None = None
  key: Callable | None = None
  bias: Callable | None = None
  logits: Callable | None = None
  value: Callable | None = None
  per_head: tuple[str, ...] = ()
  relative: bool = False
  absolute: bool = False
  causal_only: bool = False
  length_dependent: bool = False
  order_dependent: bool = False
  reads_content: bool = False
  by_distance: bool = False
  max_length: int | None = None
  parts: tuple[Encoding, ...] = ()
  reference: str = ''

  def __post_init__(self):
    object.__setattr__(self, 'per_head', tuple(self.per_head))
    if self.embed is not None and self.in_attention and not self.parts:
      raise ValueError(
          f'{self.name} acts on the embedding and in attention: make two encodings, and compose '
          'them.'
      )

  def __repr__(self):
    return self.name

  @property
  def in_attention(self) -> bool:
    """Whether the encoding acts in attention, not only on the embedding."""
    hooks = (self.place, self.query, self.key, self.bias, self.logits, self.value)
    return any(hook is not None for hook in hooks)


# --- Arrays of a record --------------------------------------------------------------------------

_MANY_HEADS = 1024  # more than any model has, so that the number of every head is below it


def assemble(encoding: Encoding, params: Arrays, dims: Dims) -> Arrays:
  """Merges the constants of `encoding` with `params`; what is in params wins.

  Args:
    encoding: the record.
    params: its trained arrays, and any constants to replace.
    dims: global sizes of the model.

  Returns:
    The dict that every hook takes.

  Raises:
    ValueError: a trained array is missing, a name is neither trained nor constant, or the record
      does not fit the sizes.
  """
  given = leaf_names(params)
  trained = leaf_names(jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims)))
  if missing := sorted(trained - given):
    raise ValueError(
        f'{encoding} misses the trained arrays {missing}: pass encoding.init(key, dims) as params.'
    )
  try:
    constants = encoding.constants(dims)
  except ValueError:
    # `dims` may be of a shard, and params assembled for the whole model: then nothing is missing.
    if given - trained != _constant_names(encoding, dims):
      raise
    return params
  if unknown := sorted(given - trained - leaf_names(constants)):
    raise ValueError(
        f'{encoding} has no arrays {unknown}: it has {sorted(trained)} trained and '
        f'{sorted(leaf_names(constants))} constant.'
    )
  return _merge(constants, params)


def _constant_names(encoding: Encoding, dims: Dims) -> set[str]:
  """Returns the names of the constants, which do not depend on how many heads there are."""
  many = Dims(dims.model, _MANY_HEADS, _MANY_HEADS, dims.head_dim)
  return leaf_names(jax.eval_shape(lambda: encoding.constants(many)))


def _merge(below: Arrays, above: Arrays) -> Arrays:
  nested = {
      name: _merge(below[name], above[name])
      for name in below.keys() & above.keys()
      if isinstance(below[name], dict)
  }
  return {**below, **above, **nested}


def leaf_name(path: tuple[Any, ...]) -> str:
  """Writes the path of a leaf of nested dicts, as jax.tree_util gives it, as `part/name`."""
  return '/'.join(str(key.key) for key in path)


def leaf_names(arrays: Arrays) -> set[str]:
  """Returns the names of all leaves."""
  return {leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(arrays)[0]}


def trainable(encoding: Encoding, params: Arrays) -> Arrays:
  """Returns a tree of booleans like `params`: True where a leaf is trained, False for constants.

  It is the mask that optax's weight decay and `optax.masked` take.

  >>> import pe_jax
  >>> trainable(pe_jax.alibi(), {'slopes': jnp.ones(4)})
  {'slopes': False}
  """
  dims = Dims(model=64, heads=8, kv_heads=8, head_dim=64)  # names do not depend on sizes
  trained = leaf_names(jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims)))
  return jax.tree_util.tree_map_with_path(lambda path, _: leaf_name(path) in trained, params)


def parameter_count(encoding: Encoding, dims: Dims) -> int:
  """Counts the trained numbers of one copy of the encoding.

  >>> import pe_jax
  >>> parameter_count(pe_jax.t5(buckets=32), Dims(model=64, heads=4))
  128
  """
  shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
  return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def take_heads(encoding: Encoding, params: Arrays, heads: slice) -> Arrays:
  """Slices every leaf that has a head axis, as one shard or one grid step needs it."""
  return jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf[heads] if leaf_name(path) in encoding.per_head else leaf, params
  )


def initial_carry(encoding: Encoding, dims: Dims, batch: tuple[int, ...] = ()) -> Any:
  """Returns the carry that `place` takes before the first token, for rows of shape `batch`."""
  return jax.tree.map(lambda zero: jnp.zeros(batch + zero.shape, zero.dtype), encoding.carry(dims))
