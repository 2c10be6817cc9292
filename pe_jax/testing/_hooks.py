# SPDX-License-Identifier: Apache-2.0
"""Laws of single hooks: positions are data, and a part of a result is the result of the part."""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.base import assemble
from pe_jax.base import Dims
from pe_jax.base import leaf_name
from pe_jax.base import take_heads
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import compare_hooks
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import place_of
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import place
from pe_jax.testing._run import run_hooks
from pe_jax.testing._run import Tokens
from pe_jax.testing._subject import Subject

# Which tokens a tile takes: in no order, one of them twice.
_QUERIES = np.array([5, 2, 7, 2, 0])
_KEYS = np.array([6, 1, 1])


def _hooks_of(subject: Subject, *names: str) -> tuple[str, ...]:
  present = tuple(name for name in names if getattr(subject.encoding, name) is not None)
  if not present:
    raise NotApplicable(f'it has no {" or ".join(names)}')
  return present


def _take(tokens: Tokens, queries: np.ndarray, keys: np.ndarray) -> Tokens:
  """Takes some of the queries and some of the keys; `x` follows the keys."""
  last = lambda coords, index: jax.tree.map(lambda leaf: np.asarray(leaf)[..., index], coords)
  pairs = lambda array: np.asarray(array)[..., queries, :][..., keys]
  return tokens._replace(
      x=np.asarray(tokens.x)[:, keys],
      positions=last(tokens.positions, keys),
      q=np.asarray(tokens.q)[:, queries],
      k=np.asarray(tokens.k)[:, keys],
      q_coords=last(tokens.q_coords, queries),
      k_coords=last(tokens.k_coords, keys),
      logits=pairs(tokens.logits),
      weights=pairs(tokens.weights),
      mask=pairs(tokens.mask),
  )


def _tile(subject: Subject, names: tuple[str, ...], why: str):
  """Compares the hooks on some queries and keys with that part of the hooks on all."""
  tokens, size = subject.tokens(), subject.size
  queries, keys = _QUERIES % size, _KEYS % size
  whole, part = subject.hooks(tokens), subject.hooks(_take(tokens, queries, keys))
  cut = {
      'embed': lambda array: array[:, keys],
      'query': lambda array: array[:, queries],
      'key': lambda array: array[:, keys],
      'bias': lambda array: array[..., queries, :][..., keys],
  }
  for name in names:
    compare(
        name,
        part[name],
        cut[name](whole[name]),
        why,
        positions=tokens.positions,
        queries=queries.tolist(),
        keys=keys.tolist(),
    )


def law_token_local(subject: Subject):
  """`embed`, `query` and `key` act on each token alone, at any position, in any order"""
  names = _hooks_of(subject, 'embed', 'query', 'key')
  _tile(subject, names, 'tokens alone, in another order and repeated, against all of them')


def law_tiles(subject: Subject):
  """A tile of `bias` is the bias of the tile, T != S, in any order"""
  names = _hooks_of(subject, 'bias')
  _tile(subject, names, 'the bias of a tile, against that tile of the bias')


def law_rows(subject: Subject):
  """`logits` and `value` treat every query by itself"""
  names = _hooks_of(subject, 'logits', 'value')
  tokens = subject.tokens()
  queries, keys = _QUERIES % subject.size, np.arange(subject.size)
  whole, part = subject.hooks(tokens), subject.hooks(_take(tokens, queries, keys))
  axis = {'logits': 2, 'value': 1}
  for name in names:
    want = np.take(whole[name], queries, axis[name])
    compare(name, part[name], want, 'some queries, against those of all', queries=queries.tolist())


def law_value_linear(subject: Subject):
  """`value` is linear in the weights"""
  _hooks_of(subject, 'value')
  tokens = subject.tokens()
  other = subject.tokens(seed=6).weights
  run = lambda weights: subject.hooks(tokens._replace(weights=weights))['value']
  want = 2 * run(tokens.weights) - 3 * run(other)
  compare(
      'value', run(2 * tokens.weights - 3 * other), want, 'of 2 a - 3 b, against 2 f(a) - 3 f(b)'
  )


def law_per_row(subject: Subject):
  """Every row of a batch may have its own positions, or all share theirs"""
  _hooks_of(subject, 'embed', 'query', 'key', 'bias', 'value', 'logits')
  tokens = subject.tokens()
  want = {name: array[1:2] for name, array in subject.hooks(tokens).items()}
  alone = jax.tree.map(lambda leaf: leaf[1] if leaf.ndim else leaf, tokens)
  got = {name: array[None] for name, array in subject.hooks(alone).items()}
  compare_hooks(got, want, 'of a row alone, against it in a batch', positions=alone.positions)
  if subject.encoding.place is not None:
    return  # coordinates of two rows differ; positions may be shared
  row = lambda coords: jax.tree.map(lambda leaf: leaf[1:2], coords)
  positions = row(tokens.positions)
  shared = tokens._replace(positions=positions, q_coords=positions, k_coords=positions)
  got = {name: array[1:2] for name, array in subject.hooks(shared).items()}
  compare_hooks(got, want, 'at positions that rows share, [1, T]', positions=positions)


def law_float_positions(subject: Subject):
  """float32 positions are as good as int32, and those between whole numbers are finite"""
  _hooks_of(subject, 'embed', 'query', 'key', 'bias', 'value')
  if subject.encoding.place is not None:
    raise NotApplicable('its coordinates come from `place`')
  tokens = subject.tokens()
  whole = jax.tree.map(np.float32, tokens.positions)
  as_float = tokens._replace(positions=whole, q_coords=whole, k_coords=whole)
  compare_hooks(
      subject.hooks(as_float),
      subject.hooks(tokens),
      'at float32 and at int32 positions',
      positions=tokens.positions,
  )
  between = jax.tree.map(lambda p: np.maximum(p - np.float32(0.25), 0), whole)
  split = as_float._replace(positions=between, q_coords=between, k_coords=between)
  for name, array in subject.hooks(split).items():
    _check_finite(name, array, 'at positions between whole numbers')


def _check_finite(hook: str, array: np.ndarray, when: str, **given):
  bad = np.argwhere(~np.isfinite(array.astype(np.float64)))
  if bad.size:
    at = tuple(bad[0])
    raise Violation(f'{hook} is {array[at]} {when}, at {place_of(hook, at)}', **given)


def law_heads(subject: Subject):
  """A slice of the heads is what the sliced arrays give (`per_head`)"""
  encoding, dims = subject.encoding, subject.dims
  _check_per_head(subject)
  names = _hooks_of(subject, 'query', 'key', 'bias', 'logits', 'value')
  group = dims.heads // dims.kv_heads
  heads, kv = slice(dims.heads - group, dims.heads), slice(dims.kv_heads - 1, dims.kv_heads)
  tokens = subject.tokens()
  params = take_heads(encoding, subject.params, heads)
  sliced = Dims(dims.model, group, 1, dims.head_dim)
  positions = subject.spread(subject.positions)
  ones = np.ones(subject.positions.shape, np.int32)
  carry = subject.carry(dims=sliced)
  coords, _ = place(params, tokens.x, positions, ones, carry, encoding=encoding)
  part = tokens._replace(
      q=tokens.q[:, :, heads],
      k=tokens.k[:, :, kv],
      q_coords=coords,
      k_coords=coords,
      logits=tokens.logits[:, heads],
      weights=tokens.weights[:, heads],
  )
  got, whole = subject.hooks(part, params), subject.hooks(tokens)
  axis = {
      'query': (2, heads),
      'key': (2, kv),
      'bias': (1, heads),
      'logits': (1, heads),
      'value': (2, heads),
  }
  for name in names:
    where, index = axis[name]
    want = whole[name][(slice(None),) * where + (index,)]
    compare(
        name,
        got[name],
        want,
        f'of heads {heads.start} to {heads.stop - 1} alone, against theirs of all',
    )


def _check_per_head(subject: Subject):
  leaves = {
      leaf_name(path): leaf
      for path, leaf in jax.tree_util.tree_flatten_with_path(subject.params)[0]
  }
  for name in subject.encoding.per_head:
    if name not in leaves:
      raise Violation(f'per_head names {name!r}, but the arrays are {sorted(leaves)}')
    if leaves[name].shape[:1] != (subject.dims.heads,):
      raise Violation(
          f'per_head names {name!r} of shape {leaves[name].shape}, whose first axis is not the '
          f'{subject.dims.heads} heads'
      )


def law_scale(subject: Subject):
  """A bias that reads no content does not read the scale"""
  _hooks_of(subject, 'bias')
  if subject.encoding.reads_content:
    raise NotApplicable('it reads content, which it scales itself')
  tokens = subject.tokens()
  got = subject.hooks(tokens._replace(scale=tokens.scale * 8))['bias']
  compare('bias', got, subject.hooks(tokens)['bias'], 'at another scale of the logits')


def law_jit(subject: Subject):
  """Compiled and called as they are, the hooks agree"""
  tokens = subject.tokens()
  arrays = jax.tree.map(jnp.asarray, tokens)
  eager = run_hooks(subject.params, arrays, encoding=subject.encoding)
  eager = jax.tree.map(np.asarray, eager)
  compare_hooks(eager, subject.hooks(tokens), 'eager against jit', positions=tokens.positions)
  if subject.encoding.place is not None:
    got, want = subject.place_eagerly(arrays)[0], subject.place(tokens.x, tokens.positions)[0]
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
      compare('place', np.asarray(one), np.asarray(two), 'eager against jit')


def law_vmap(subject: Subject):
  """vmap over rows is a batch of rows"""
  tokens = subject.tokens()
  axes = Tokens(*(None if name == 'scale' else 0 for name in Tokens._fields))
  run = lambda tokens: run_hooks(subject.params, tokens, encoding=subject.encoding)
  mapped = jax.jit(jax.vmap(run, in_axes=(axes,)))(tokens)
  mapped = jax.tree.map(np.asarray, mapped)
  compare_hooks(mapped, subject.hooks(tokens), 'vmap against batch', positions=tokens.positions)


def law_shapes(subject: Subject):
  """Outputs have the input's shape and dtype; bias, logits and value are float32"""
  float32 = {'bias', 'logits', 'value'}
  for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    tokens = subject.tokens(dtype=dtype)
    like = {
        'embed': tokens.x,
        'query': tokens.q,
        'key': tokens.k,
        'bias': tokens.logits,
        'logits': tokens.logits,
        'value': tokens.q,
    }
    _check_coords(subject, tokens, jnp.dtype(dtype).name)
    for cast in (jnp.float32, dtype):
      params = jax.tree.map(lambda leaf, cast=cast: np.asarray(leaf).astype(cast), subject.trained)
      params = assemble(subject.encoding, params, subject.dims)
      run = lambda params, tokens: run_hooks(params, tokens, encoding=subject.encoding)
      for name, out in jax.eval_shape(run, params, tokens).items():
        want = jnp.dtype(jnp.float32 if name in float32 else dtype)
        if out.shape != like[name].shape:
          raise Violation(f'{name} has shape {out.shape}, not {like[name].shape}')
        if out.dtype != want:
          raise Violation(
              f'{name} returns {out.dtype}, not {want}',
              dtype=jnp.dtype(dtype).name,
              params=jnp.dtype(cast).name,
          )


def _check_coords(subject: Subject, tokens: Tokens, dtype: str):
  """Raises a `Violation` where coordinates are in half precision, or their last axis no token."""
  if subject.encoding.place is None:
    return
  for leaf in jax.tree.leaves(jax.eval_shape(lambda: subject.place_eagerly(tokens)[0])):
    if leaf.dtype not in (jnp.float32, jnp.int32) or leaf.shape[-1] != tokens.x.shape[1]:
      raise Violation(
          f'place returns {leaf.dtype} of shape {leaf.shape}: coordinates are float32 or int32, '
          'and their last axis is the tokens',
          dtype=dtype,
      )
