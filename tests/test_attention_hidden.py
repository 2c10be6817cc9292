# SPDX-License-Identifier: Apache-2.0
"""Queries that see nothing, and what nobody may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from tests.attention_loops import each_kernel
from tests.attention_loops import each_kernel_and_type
from tests.attention_loops import padded
from tests.attention_loops import run


@each_kernel_and_type
def test_a_query_that_sees_nothing_gets_zero(kernel, dtype):  # pytorch/pytorch #103963
  q, k, v, _, mask = padded()
  q, k, v = (x.astype(dtype) for x in (q, k, v))
  positions = jnp.arange(6)
  encoding = pe_jax.alibi_learned()
  params = encoding.init(None, pe_jax.Dims(model=32, heads=4))

  def total(q, k, v, params):
    return run(q, k, v, positions, positions, encoding, params, mask=mask, kernel=kernel).sum()

  out = run(q, k, v, positions, positions, encoding, params, mask=mask, kernel=kernel)
  assert (out[1, :3] == 0).all()
  first = [x[:1] for x in (q, k, v)]
  causal_only = Mask(causal=True)
  alone = run(*first, positions, positions, encoding, params, mask=causal_only, kernel=kernel)
  assert (out[:1] == alone).all(), 'other rows noticed'
  grads = jax.grad(total, argnums=(0, 1, 2, 3))(q, k, v, params)
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
  for grad in grads[:3]:
    assert (grad[1, :3] == 0).all()


@each_kernel
def test_all_keys_masked_is_zero_and_not_their_mean(kernel):  # pytorch/pytorch #103963
  v = jnp.arange(5.0).reshape(1, 5, 1, 1)
  zeros, positions = jnp.zeros((1, 5, 1, 1)), jnp.arange(5)
  nothing = Mask(dense=jnp.zeros((5, 5), bool))
  assert (run(zeros, zeros, v, positions, positions, mask=nothing, kernel=kernel) == 0).all()
  weights = pe_jax.attention_weights(
      zeros, zeros, v, positions, positions, encoding=pe_jax.none(), params={}, mask=nothing
  )
  assert (weights == 0).all()


ENCODINGS = [
    pe_jax.none(),
    pe_jax.rope(),
    pe_jax.rope(scaling=pe_jax.scaling.dynamic_ntk(factor=2, original_length=4)),
    pe_jax.alibi(),
    pe_jax.t5(buckets=8, max_distance=16),
    pe_jax.shaw(max_distance=2),
    pe_jax.cope(max_position=4),
]


@pytest.mark.parametrize('encoding', ENCODINGS, ids=repr)
@pytest.mark.parametrize('kernel', [None, kernels.xla])
def test_what_nobody_may_see_cannot_leak(encoding, kernel):
  if kernel is kernels.xla and (encoding.value or encoding.logits):
    kernel = kernels.dense
  q, k, v, segments, mask = padded()
  params = encoding.init(jax.random.key(1), pe_jax.Dims(model=32, heads=4, kv_heads=2))
  positions = pe_jax.positions.from_mask(segments)
  hidden = (segments == 0)[..., None, None]

  def loss(args, params):
    out = run(*args, positions, positions, encoding, params, mask=mask, kernel=kernel)
    return (out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum(), out

  clean, want = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)((q, k, v), params)
  dirty = tuple(jnp.where(hidden, jnp.nan, x) for x in (q, k, v))
  dirty, got = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(dirty, params)
  np.testing.assert_array_equal(dirty[1], clean[1])
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_left_padding_changes_nothing():  # huggingface/transformers #19581
  q, k, v, segments, mask = padded()
  positions = pe_jax.positions.from_mask(segments)
  for encoding in ENCODINGS:
    params = encoding.init(jax.random.key(1), pe_jax.Dims(model=32, heads=4, kv_heads=2))
    out = run(q, k, v, positions, positions, encoding, params, mask=mask, length=9)
    alone = [x[1, 3:] for x in (q, k, v)]
    three = jnp.arange(3)
    want = run(*alone, three, three, encoding, params, mask=Mask(causal=True), length=9)
    np.testing.assert_allclose(out[1, 3:], want, atol=1e-5, err_msg=repr(encoding))
