# SPDX-License-Identifier: Apache-2.0
"""The semantics of attention, against float64 loops, on every kernel that runs on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from tests.attention_loops import causal
from tests.attention_loops import each_kernel
from tests.attention_loops import each_kernel_and_type
from tests.attention_loops import inputs
from tests.attention_loops import loops
from tests.attention_loops import padded
from tests.attention_loops import run

# --- Values --------------------------------------------------------------------------------------


@each_kernel
@pytest.mark.parametrize('queries, keys', [(5, 5), (2, 5), (1, 5), (5, 2)])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_causal_attention_is_the_formula(kernel, queries, keys, kv_heads):
  args = inputs(queries=queries, keys=keys, kv_heads=kv_heads)
  out = run(*args, mask=Mask(causal=True), kernel=kernel)
  np.testing.assert_allclose(out, loops(*args[:3], causal(queries, keys)), atol=2e-6)


@each_kernel
def test_every_mask_at_once_is_the_formula(kernel):
  q, k, v, q_pos, k_pos = inputs(queries=7, keys=7)
  segments = jnp.array([[1, 1, 1, 2, 2, 2, 0], [0, 0, 4, 4, 4, 4, 4]])
  dense = jax.random.bernoulli(jax.random.key(5), 0.7, (4, 7, 7))
  mask = Mask(causal=True, window=3, q_segments=segments, k_segments=segments, dense=dense)
  ids, drawn = np.asarray(segments), np.asarray(dense)

  def allowed(b, n, t, s):
    return 0 <= t - s < 3 and ids[b, t] == ids[b, s] != 0 and drawn[n, t, s]

  out = run(q, k, v, q_pos, k_pos, mask=mask, kernel=kernel)
  np.testing.assert_allclose(out, loops(q, k, v, allowed), atol=2e-6)


@each_kernel
def test_the_bias_is_added_to_the_scaled_logits(kernel):
  q, k, v, q_pos, k_pos = inputs(heads=3, kv_heads=3)
  slopes = [0.0625, 0.00390625, 0.25]
  bias = lambda b, n, t, s: -slopes[n] * abs(s - t)
  out = run(q, k, v, q_pos, k_pos, encoding=pe_jax.alibi(), scale=0.3, kernel=kernel)
  np.testing.assert_allclose(out, loops(q, k, v, lambda *_: True, bias, scale=0.3), atol=2e-6)


def test_softcap_bounds_the_logits_after_the_bias():
  q, k, v, q_pos, k_pos = inputs(heads=2, kv_heads=2)
  bias = lambda b, n, t, s: -[0.0625, 0.00390625][n] * abs(s - t)
  out = run(q * 9, k, v, q_pos, k_pos, pe_jax.alibi(), softcap=2.0)
  np.testing.assert_allclose(out, loops(q * 9, k, v, lambda *_: True, bias, softcap=2.0), atol=2e-6)


def test_weights_are_those_that_make_the_output():
  q, k, v, q_pos, k_pos = inputs()
  mask = Mask(causal=True)
  weights = pe_jax.attention_weights(
      q, k, v, q_pos, k_pos, encoding=pe_jax.rope(), params={}, mask=mask
  )
  np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
  by_hand = np.einsum('bnts,bsnh->btnh', weights, np.repeat(v, 2, axis=2))
  out = run(q, k, v, q_pos, k_pos, encoding=pe_jax.rope(), mask=mask)
  np.testing.assert_allclose(out, by_hand, atol=2e-6)


@each_kernel
def test_rows_may_have_positions_of_their_own(kernel):
  q, k, v, _, _ = inputs()
  positions = jnp.array([[0, 1, 2, 3, 4], [7, 3, 3, 0, 90]])
  alibi = pe_jax.alibi()
  together = run(q, k, v, positions, positions, encoding=alibi, kernel=kernel)
  for row in range(2):
    alone = run(*(x[row] for x in (q, k, v, positions, positions)), encoding=alibi, kernel=kernel)
    np.testing.assert_allclose(together[row], alone, atol=1e-6)


# --- The same as jax.nn, where jax.nn has the argument --------------------------------------------


@pytest.mark.parametrize(
    'ours, theirs',
    [
        ({}, {}),
        ({'scale': 0.5}, {'scale': 0.5}),
        ({'mask': Mask(causal=True)}, {'is_causal': True}),
        ({'mask': Mask(window=(2, 1))}, {'local_window_size': (2, 1)}),
        (
            {'mask': Mask(causal=True, window=(1, 0))},
            {'is_causal': True, 'local_window_size': (1, 0)},
        ),
    ],
)
def test_an_argument_means_what_it_means_in_jax_nn(ours, theirs):
  args = inputs()
  np.testing.assert_allclose(
      run(*args, **ours), jax.nn.dot_product_attention(*args[:3], **theirs), atol=2e-6
  )


# --- Types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('encoding', [pe_jax.alibi(), pe_jax.t5(buckets=4)], ids=repr)
@pytest.mark.parametrize('kernel', [kernels.dense, kernels.blockwise])
@pytest.mark.parametrize('dtype', [jnp.uint8, jnp.int8, jnp.uint32])
def test_positions_may_be_any_integers(encoding, kernel, dtype):
  """A distance of -2 is no unsigned number, and from 255 to 0 is no step of one."""
  q, k, v, _, _ = inputs(queries=3, keys=3)
  params = encoding.init(jax.random.key(1), pe_jax.Dims(model=32, heads=4))
  last = jnp.iinfo(dtype).max if dtype != jnp.uint32 else 200
  for positions in ([0, 1, 2], [last - 1, last, 0]):
    small, floats = jnp.array(positions, dtype), jnp.array(positions, jnp.float32)
    got = run(q, k, v, small, small, encoding, params, kernel=kernel)
    want = run(q, k, v, floats, floats, encoding, params)
    np.testing.assert_allclose(got, want, atol=1e-6)


@each_kernel_and_type
def test_no_type_rounds_the_bias(kernel, dtype):  # HabanaAI/vllm-fork #503
  steps = 2048
  zeros = jnp.zeros((1, steps, 1, 4), dtype)
  v = jnp.zeros((1, steps, 1, 4), dtype).at[0, -4:, 0].set(jnp.eye(4, dtype=dtype))
  q_pos, k_pos = jnp.array([steps - 1]), jnp.arange(steps)
  out = run(zeros[:, :1], zeros, v, q_pos, k_pos, pe_jax.alibi(slopes=(0.5,)), kernel=kernel)
  assert out.dtype == dtype
  np.testing.assert_allclose(
      out[0, 0, 0].astype(np.float32), [0.087795, 0.144749, 0.238651, 0.393469], rtol=4e-3
  )


def test_values_may_have_a_type_of_their_own():  # facebookresearch/xformers #742
  q, k, v, q_pos, k_pos = inputs()
  out = run(q, k, v.astype(jnp.bfloat16), q_pos, k_pos, pe_jax.rope())
  assert out.dtype == jnp.bfloat16


# --- Length --------------------------------------------------------------------------------------


def test_the_length_is_that_of_the_row_without_padding():
  scaling = pe_jax.scaling.dynamic_ntk(factor=2, original_length=2)
  encoding = pe_jax.rope(scaling=scaling)
  q, k, v, segments, mask = padded()
  positions = pe_jax.positions.from_mask(segments).at[1, 0].set(50)  # padding says nothing
  out = run(q, k, v, positions, positions, encoding, mask=mask)
  given = run(q, k, v, positions, positions, encoding, mask=mask, length=jnp.array([6, 3]))
  np.testing.assert_array_equal(out, given)
  other = run(q, k, v, positions, positions, encoding, mask=mask, length=6)
  assert np.abs(other[1, 3:] - out[1, 3:]).max() > 1e-3


# --- What is refused -----------------------------------------------------------------------------


def test_a_kernel_refuses_what_it_cannot_do():
  args = inputs()
  dims = pe_jax.Dims(model=32, heads=4, kv_heads=2)
  with pytest.raises(ValueError, match='softcap'):
    run(*args, softcap=3.0, kernel=kernels.xla)
  for encoding, hook in [(pe_jax.shaw(), 'value'), (pe_jax.cope(), 'logits')]:
    params = encoding.init(jax.random.key(0), dims)
    with pytest.raises(ValueError, match=f'{hook} hook'):
      run(*args, encoding, params, mask=Mask(causal=True), kernel=kernels.xla)


@pytest.mark.parametrize(
    'change, said',
    [
        ({'k': (2, 5, 3, 8)}, 'multiple of 3 key heads'),
        ({'k': (2, 5, 2, 4)}, 'must be'),
        ({'k': (3, 5, 2, 8)}, 'batch axes'),
        ({'q_pos': jnp.arange(4)}, '5 tokens'),
        ({'k_pos': jnp.zeros((3, 5))}, 'does not fit'),
        ({'q_pos': jnp.zeros(5, jnp.bfloat16)}, 'cannot count tokens'),
        ({'params': {'slope': jnp.ones(4)}}, r"no arrays \['slope'\]"),
        ({'encoding': pe_jax.rope}, 'call a factory'),
        ({'scale': jnp.ones((4, 1, 1))}, 'scale has shape .* one number'),
        ({'softcap': jnp.ones((4, 1, 1))}, 'softcap has shape .* one number'),
        ({'mask': jnp.ones((5, 5), bool)}, r'Mask\(dense=array\)'),
        ({'params': [1.0]}, 'is no dict'),
        ({'encoding': pe_jax.t5()}, r"misses the trained arrays \['table'\]"),
        ({'encoding': pe_jax.alibi(slopes=(1.0, 0.5))}, 'same heads'),
        ({'encoding': pe_jax.cope(), 'params': {'table': jnp.ones((64, 8))}}, 'causal=True'),
        ({'mask': Mask(dense=jnp.ones((1, 1, 1, 1, 5), bool))}, 'more axes'),
    ],
)
def test_a_mistake_is_named(change, said):
  q, k, v, q_pos, k_pos = inputs()
  if 'k' in change:
    k = v = jnp.zeros(change.pop('k'))
  options = {'q_pos': q_pos, 'k_pos': k_pos, 'encoding': pe_jax.alibi(), 'params': {}} | change
  q_pos, k_pos = options.pop('q_pos'), options.pop('k_pos')
  with pytest.raises(ValueError, match=said):
    run(q, k, v, q_pos, k_pos, **options)


def test_whole_numbers_are_no_queries():
  q, k, v, q_pos, k_pos = inputs()
  with pytest.raises(ValueError, match='q has dtype int32'):
    run(q.astype(jnp.int32), k, v, q_pos, k_pos)
