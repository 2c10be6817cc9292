# SPDX-License-Identifier: Apache-2.0
"""Attention that is split among devices, by `jax.shard_map` or by XLA, is attention."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

import pe_jax
from pe_jax import Mask
from pe_jax.base import leaf_name

DIMS = pe_jax.Dims(model=32, heads=4)
SEGMENTS = jnp.array([[1] * 100 + [2] * 156, [1] * 256, [0] * 256, [3] * 56 + [0] * 200])
BATCH, HEADS = 'batch', 'heads'


@pytest.fixture(scope='module')
def mesh():
  return jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), (BATCH, HEADS))


def gradients(q, k, v, params, segments, *, encoding):
  """The sum of some weighted output, and its gradients."""

  def loss(q, k, v, params):
    mask = Mask(causal=True, q_segments=segments, k_segments=segments)
    positions = jnp.arange(q.shape[1])
    out = pe_jax.attend(q, k, v, positions, positions, encoding=encoding, params=params, mask=mask)
    return jnp.sin(out).sum()

  return jax.value_and_grad(loss, (0, 1, 2, 3))(q, k, v, params)


def arrays(encoding):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 4, 256, 4, 8))
  return q, k, v, pe_jax.assemble(encoding, encoding.init(jax.random.key(1), DIMS), DIMS)


@pytest.mark.parametrize(
    'encoding',
    [pe_jax.compose(pe_jax.rope(), pe_jax.t5()), pe_jax.shaw(), pe_jax.fire(width=4)],
    ids=repr,
)
def test_rows_and_heads_on_several_devices(mesh, encoding):
  q, k, v, params = arrays(encoding)
  rows = PartitionSpec(BATCH, None, HEADS)
  per_head = jax.tree_util.tree_map_with_path(
      lambda path, _: PartitionSpec(*[HEADS] * (leaf_name(path) in encoding.per_head)), params
  )

  @functools.partial(
      jax.shard_map,
      mesh=mesh,
      in_specs=(rows, rows, rows, per_head, PartitionSpec(BATCH)),
      out_specs=(PartitionSpec(), (rows, rows, rows, per_head)),
  )
  def sharded(*args):
    value, grads = gradients(*args, encoding=encoding)
    return jax.lax.psum(value, (BATCH, HEADS)), grads

  got = jax.jit(sharded)(q, k, v, params, SEGMENTS)
  want = jax.jit(functools.partial(gradients, encoding=encoding))(q, k, v, params, SEGMENTS)
  close = functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=2e-5)
  jax.tree.map(close, got, want)
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


def test_xla_splits_it_by_itself(mesh):
  encoding = pe_jax.alibi_learned()
  run = jax.jit(functools.partial(gradients, encoding=encoding))
  args = (*arrays(encoding), SEGMENTS)
  split = lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, PartitionSpec(BATCH)))
  got = run(*map(split, args[:3]), args[3], split(args[4]))
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=2e-5), got, run(*args))
