# SPDX-License-Identifier: Apache-2.0
"""What goes with RoPE: xPos, log-n scaling of queries, and encodings on some heads only."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax

DIMS = pe_jax.Dims(model=32, heads=2)
SIZE = 16
RNG = np.random.default_rng(0)


# --- xPos ----------------------------------------------------------------------------------------


def xpos_loop(q, k, positions, base, scale_base, gamma):
  """Section 3 of the paper, one pair of channels at a time; keys after the query are left out."""
  half = q.shape[-1] // 2
  scores = np.zeros((len(positions),) * 2)
  for t, m in enumerate(positions):
    for s, n in enumerate(positions[: t + 1]):
      for i in range(half):
        z = (2 * i / (2 * half) + gamma) / (1 + gamma)
        turn = base ** (-i / half) * (int(m) - int(n))
        score = complex(q[t, i], q[t, i + half]) * complex(k[s, i], -k[s, i + half])
        score *= complex(math.cos(turn), math.sin(turn))
        scores[t, s] += score.real * z ** ((int(m) - int(n)) / scale_base)
  return scores


def xpos_scores(encoding, q, k, positions, length, dtype=jnp.float32):
  """Returns q . k in float64 from the hooks, keys after the query left out."""
  params = encoding.constants(pe_jax.Dims(model=SIZE, heads=1))
  positions = jnp.asarray(positions, jnp.int32)[None]
  turned = [
      np.asarray(hook(params, jnp.asarray(x, dtype)[None, :, None], positions, length), np.float64)
      for hook, x in ((encoding.query, q), (encoding.key, k))
  ]
  return np.tril(np.einsum('btnh,bsnh->ts', *turned))


Q, K = RNG.normal(size=(2, 12, SIZE)).astype(np.float32)


@pytest.mark.parametrize('start', [0, 2**20, 2**24 - 12])
@pytest.mark.parametrize(
    'options', [{}, {'base': 300.0, 'scale_base': 40.0, 'gamma': 0.1}], ids=['plain', 'options']
)
def test_xpos_is_the_papers_at_any_absolute_position(start, options):
  positions = start + np.arange(12)
  want = xpos_loop(Q, K, positions, **{'base': 1e4, 'scale_base': 512, 'gamma': 0.4, **options})
  found = xpos_scores(pe_jax.xpos(**options), Q, K, positions, start + 12)
  np.testing.assert_allclose(found, want, atol=2e-5)


@pytest.mark.parametrize(
    'dtype, span, atol',
    [(jnp.float32, 32768, 2e-5), (jnp.bfloat16, 32768, 0.2), (jnp.float16, 6000, 0.03)],
    ids=['float32', 'bfloat16', 'float16'],
)
def test_xpos_holds_over_long_texts(dtype, span, atol):
  positions = np.linspace(0, span - 1, 12).astype(int)
  want = xpos_loop(Q, K, positions, 1e4, 512, 0.4)
  found = xpos_scores(pe_jax.xpos(), Q, K, positions, span, dtype)
  np.testing.assert_allclose(found, want, atol=atol)


def test_xpos_says_nan_where_float32_cannot_hold_its_factors():
  positions = np.array([0, 20_000, 70_000, 99_999])
  found = xpos_scores(pe_jax.xpos(), Q[:4], K[:4], positions, 100_000)
  assert np.isnan(found[:2]).any() and np.isfinite(found[2:]).all()
  # So it does where the length that was given is far below the positions.
  assert np.isnan(xpos_scores(pe_jax.xpos(), Q[:4], K[:4], positions, 1)[2:]).any()


def test_xpos_fades_and_interleaves():
  params = pe_jax.xpos().constants(pe_jax.Dims(model=SIZE, heads=1))
  z = np.exp(np.float64(params['log_decay']))
  np.testing.assert_allclose(z, [(i / 8 + 0.4) / 1.4 for i in range(8)], rtol=1e-6)
  order = pe_jax.layouts.half_to_interleaved
  positions = np.arange(12)
  plain = xpos_scores(pe_jax.xpos(), Q, K, positions, 12)
  found = xpos_scores(pe_jax.xpos(layout='interleaved'), order(Q), order(K), positions, 12)
  np.testing.assert_allclose(found, plain, atol=1e-5)


def test_xpos_refuses_bidirectional_attention():
  q = jnp.ones((1, 3, 2, SIZE))
  args = (q, q, q, jnp.arange(3), jnp.arange(3))
  with pytest.raises(ValueError, match='causal=True'):
    pe_jax.attend(*args, encoding=pe_jax.xpos(), params={})
  for options in ({'gamma': 0}, {'layout': 'both'}, {'base': -1}, {'scale_base': 0}):
    with pytest.raises(ValueError, match=f'{list(options)[0]}='):
      pe_jax.xpos(**options)


def test_xpos_gradients_are_finite_for_keys_of_any_distance():
  """Keys that have long faded, and cached slots whose positions are still to come."""
  at = jnp.array([0, 7, 2**20, 2**20 + 1, 2**23])
  mask = pe_jax.Mask(causal=True, q_index=jnp.array([2, 3]), k_index=jnp.arange(5))

  def loss(q, k):
    options = {'encoding': pe_jax.xpos(), 'params': {}, 'mask': mask}
    return jnp.sum(jnp.square(pe_jax.attend(q, k, k, at[2:4], at, **options)))

  keys = jax.random.split(jax.random.key(0))
  q, k = (jax.random.normal(key, (1, n, 2, SIZE)) for key, n in zip(keys, (2, 5)))
  for gradient in jax.grad(loss, argnums=(0, 1))(q, k):
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


# --- Log-n scaling -------------------------------------------------------------------------------


def test_log_n_grows_queries_past_the_trained_length():
  encoding = pe_jax.log_n(trained_length=64)
  positions = jnp.array([[0, 5, 63, 64, 4095, -3]])
  q = jax.random.normal(jax.random.key(0), (1, 6, 2, SIZE))
  grown = encoding.query(encoding.constants(DIMS), q, positions, None)
  want = np.reshape([1, 1, 1, math.log(65) / math.log(64), 2, 1], (6, 1, 1))
  np.testing.assert_allclose(grown, q * np.broadcast_to(want, q.shape), rtol=1e-5)
  assert encoding.key is None
  with pytest.raises(ValueError, match='trained_length=1.0 must be above 1'):
    pe_jax.log_n(trained_length=1)


def test_log_n_keeps_the_entropy_of_equal_scores_apart():
  # With one score 1 above n - 1 others, its weight stays when scores grow by ln(n) / ln(L).
  lifted = pe_jax.log_n(trained_length=8)
  params = lifted.constants(DIMS)
  for n in (8, 64, 512):
    q = jnp.ones((1, 1, 2, SIZE))
    scale = float(lifted.query(params, q, jnp.array([[n - 1]]), None)[0, 0, 0, 0])
    top = math.log(8)
    weight = math.exp(scale * top) / (math.exp(scale * top) + n - 1)
    assert weight == pytest.approx(0.5, abs=0.04)


# --- Some heads only -----------------------------------------------------------------------------

FOUR = pe_jax.Dims(model=64, heads=4, kv_heads=2)


def test_only_the_chosen_heads_turn():
  encoding = pe_jax.on_heads(pe_jax.rope(), heads=(2, 3))
  params = encoding.constants(FOUR)
  x = jax.random.normal(jax.random.key(0), (1, 5, 4, SIZE))
  positions = jnp.arange(5)[None]
  plain = pe_jax.rope().query(pe_jax.rope().constants(FOUR), x, positions, None)
  found = encoding.query(params, x, positions, None)
  np.testing.assert_array_equal(found[:, :, :2], x[:, :, :2])
  np.testing.assert_array_equal(found[:, :, 2:], plain[:, :, 2:])
  keys = encoding.key(params, x[:, :, :2], positions, None)
  np.testing.assert_array_equal(keys[:, :, 0], x[:, :, 0])
  np.testing.assert_array_equal(keys[:, :, 1], plain[:, :, 1])
  # A shard of heads slices the constant; it never asks how many heads there are.
  half = pe_jax.take_heads(encoding, params, slice(2, 4))
  np.testing.assert_array_equal(encoding.query(half, x[:, :, 2:], positions, None), found[:, :, 2:])
  np.testing.assert_array_equal(encoding.key(half, x[:, :, 1:2], positions, None), keys[:, :, 1:])


@pytest.mark.parametrize('inner', [pe_jax.alibi(), pe_jax.cope(), pe_jax.shaw()], ids=repr)
def test_every_hook_of_attention_may_act_on_some_heads(inner):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 6, 4, SIZE))
  at, dims = jnp.arange(6), pe_jax.Dims(model=64, heads=4)
  encoding = pe_jax.on_heads(inner, heads=(0, 2))
  shapes = inner.init(jax.random.key(1), dims)
  params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(2), x.shape), shapes)
  options = {'mask': pe_jax.Mask(causal=True)}
  found, everywhere, nowhere = (
      pe_jax.attend(q, k, v, at, at, encoding=e, params=p, **options)
      for e, p in ((encoding, params), (inner, params), (pe_jax.none(), {}))
  )
  np.testing.assert_allclose(found[:, :, ::2], everywhere[:, :, ::2], atol=1e-6)
  np.testing.assert_allclose(found[:, :, 1::2], nowhere[:, :, 1::2], atol=1e-6)
  assert np.abs(everywhere - nowhere)[:, 1:].max(axis=(0, 1, 3)).min() > 1e-3


def test_heads_that_make_no_sense_are_named():
  for heads in ((), (-1,), 'two', (0.5,)):
    with pytest.raises(ValueError, match='heads='):
      pe_jax.on_heads(pe_jax.rope(), heads=heads)
  with pytest.raises(ValueError, match='does not act in attention'):
    pe_jax.on_heads(pe_jax.sinusoidal(), heads=(0,))
  for heads, says in (((4, 5), 'below 4'), ((0,), 'share a key head')):
    with pytest.raises(ValueError, match=says):
      pe_jax.on_heads(pe_jax.rope(), heads=heads).constants(FOUR)
  listed, given = (pe_jax.on_heads(pe_jax.rope(), heads=heads) for heads in ([0, 1], (0, 1)))
  assert listed == given
