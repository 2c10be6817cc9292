# SPDX-License-Identifier: Apache-2.0
"""Laws of the compiled program: what is in it, and that shards of it agree with the whole."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

from pe_jax.base import Dims
from pe_jax.base import leaf_name
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import layer
from pe_jax.testing._run import run_hooks
from pe_jax.testing._run import run_layer
from pe_jax.testing._subject import BATCH
from pe_jax.testing._subject import Subject

_LONG = 2048
_CHARACTERS = 400_000  # L x L floats are 30 million, a table of L x 64 is one


def law_no_constants(subject: Subject):
  """The program holds no mask, bias or table as a constant"""
  size, d = min(_LONG, subject.limit), subject.dims
  tokens = subject.tokens()
  like = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
  stretch = lambda leaf: like(1, *leaf.shape[1:-1], size, dtype=leaf.dtype)
  tokens = tokens._replace(
      x=like(1, size, d.model),
      positions=jax.tree.map(stretch, tokens.positions),
      q=like(1, size, d.heads, d.head_dim),
      k=like(1, size, d.kv_heads, d.head_dim),
      q_coords=jax.tree.map(stretch, tokens.q_coords),
      k_coords=jax.tree.map(stretch, tokens.k_coords),
      logits=like(1, d.heads, size, size),
      weights=like(1, d.heads, size, size),
      mask=like(1, 1, size, size, dtype=jnp.bool_),
      length=like(1, dtype=jnp.int32),
  )
  run = functools.partial(run_hooks, encoding=subject.encoding)
  text = jax.jit(run).lower(subject.params, tokens).as_text()
  if len(text) > _CHARACTERS:
    raise Violation(
        f'the program for {size} tokens has {len(text)} characters, most of them constants: '
        'compute them from positions, or return them from `constants`',
        tokens=size,
    )


def law_sharded(subject: Subject):
  """Rows and heads sharded over 8 devices give what one device gives"""
  d, encoding = subject.dims, subject.encoding
  devices = jax.devices()
  if len(devices) < 8:
    raise NotApplicable(f'{len(devices)} device{"s" * (len(devices) > 1)}, not 8')
  heads = int(np.gcd(d.kv_heads, 8))
  rows = 8 // heads
  auto = (jax.sharding.AxisType.Auto,) * 2
  mesh = jax.make_mesh((rows, heads), ('rows', 'heads'), devices=devices[:8], axis_types=auto)
  batch = max(rows, BATCH)
  split = lambda array: np.resize(array, (batch, *array.shape[1:]))
  row = subject.row(x=split(subject.x), positions=split(subject.positions))
  by_row = jax.tree.map(lambda leaf: P('rows', *[None] * (leaf.ndim - 1)), row)
  by_head = {name: P(None, 'heads') for name in ('q', 'k', 'v')} | {'v_bias': P('heads')}
  local = Dims(d.model, d.heads // heads, d.kv_heads // heads, d.head_dim)
  run = functools.partial(run_layer, encoding=encoding, dims=local, kernel=subject.kernel)
  sharded = jax.jit(
      jax.shard_map(
          run,
          mesh=mesh,
          in_specs=(_head_specs(subject), by_head, by_row),
          out_specs=P('rows', None, 'heads'),
          check_vma=False,
      )
  )
  with refusals(subject.kernel):
    got = sharded(subject.params, subject.weights, row)
    want = layer(
        subject.params, subject.weights, row, encoding=encoding, dims=d, kernel=subject.kernel
    )
  compare(
      'attend',
      np.asarray(got),
      np.asarray(want),
      f'over a mesh of {rows} x {heads}, against whole',
      positions=row.positions,
  )


def _head_specs(subject: Subject):
  """How params are split: leaves with a head axis by head, the others not at all."""

  def spec(path, leaf):
    del leaf
    return P('heads') if leaf_name(path) in subject.encoding.per_head else P()

  return jax.tree_util.tree_map_with_path(spec, subject.params)
