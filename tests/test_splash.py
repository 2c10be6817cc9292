# SPDX-License-Identifier: Apache-2.0
"""Splash attention against float64 sums, on a CPU that interprets the TPU's kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask

SPLASH = pe_jax.bind(kernels.splash, interpret=True)
WIDTH = 16
SEGMENTS = jnp.array([[1] * 50 + [2] * 70 + [0] * 8, [0] * 10 + [3] * 118])


def arrays(queries, keys, heads, kv_heads):
  draw = np.random.default_rng(0)
  q, g = draw.normal(size=(2, 2, queries, heads, WIDTH)).astype(np.float32)
  k, v = draw.normal(size=(2, 2, keys, kv_heads, WIDTH)).astype(np.float32)
  return q, k, v, g


def attend(q, k, v, mask, encoding=pe_jax.none(), **options):
  queries, keys = q.shape[1], k.shape[1]
  positions = jnp.arange(keys - queries, keys), jnp.arange(keys)
  return pe_jax.attend(
      q, k, v, *positions, encoding=encoding, params={}, mask=mask, kernel=SPLASH, **options
  )


def by_hand(q, k, v, g, allowed):
  """The output and its gradients against g, written out, in float64; allowed is [..., T, S]."""
  q, k, v, g = (np.float64(x) for x in (q, k, v, g))
  groups, scale = q.shape[2] // k.shape[2], q.shape[3] ** -0.5
  k, v = (np.repeat(x, groups, axis=2) for x in (k, v))
  logits = np.where(allowed[:, None], scale * np.einsum('btnh,bsnh->bnts', q, k), -np.inf)
  seen = allowed.any(axis=-1)[:, None, :, None]
  weights = np.where(seen, np.exp(logits - np.where(seen, logits.max(-1, keepdims=True), 0)), 0)
  weights /= np.where(seen, weights.sum(axis=-1, keepdims=True), 1)
  out = np.einsum('bnts,bsnh->btnh', weights, v)
  by_weight = np.einsum('btnh,bsnh->bnts', g, v)
  by_logit = weights * (by_weight - (weights * by_weight).sum(axis=-1, keepdims=True))
  back_q = scale * np.einsum('bnts,bsnh->btnh', by_logit, k)
  back_k = scale * np.einsum('bnts,btnh->bsnh', by_logit, q)
  back_v = np.einsum('bnts,btnh->bsnh', weights, g)
  back_k, back_v = (x.reshape(*x.shape[:2], -1, groups, WIDTH).sum(3) for x in (back_k, back_v))
  return out, back_q, back_k, back_v


CASES = {
    'causal, grouped heads': (Mask(causal=True), 128, 2, 1, lambda t, s: s <= t),
    'window on both sides': (
        Mask(window=(30, 5)),
        256,
        2,
        2,
        lambda t, s: (s >= t - 30) & (s <= t + 5),
    ),
    'everything': (None, 256, 1, 1, lambda t, s: s >= 0 * t),
    'causal window of segments': (
        Mask(causal=True, window=20, q_segments=SEGMENTS, k_segments=SEGMENTS),
        128,
        2,
        1,
        lambda t, s: (s <= t) & (s > t - 20),
    ),
}


@pytest.mark.parametrize('mask, keys, heads, kv_heads, sees', CASES.values(), ids=CASES)
def test_splash_is_attention_forward_and_backward(mask, keys, heads, kv_heads, sees):
  queries = 128
  q, k, v, g = arrays(queries, keys, heads, kv_heads)
  allowed = sees(np.arange(keys - queries, keys)[:, None], np.arange(keys)[None, :])
  allowed = np.broadcast_to(allowed, (2, queries, keys))
  if mask is not None and mask.q_segments is not None:
    ids = np.asarray(SEGMENTS)
    allowed = allowed & (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] != 0)

  @jax.jit
  def run(q, k, v):
    out, back = jax.vjp(lambda *args: attend(*args, mask), q, k, v)
    return out, *back(g)

  for ours, want in zip(run(q, k, v), by_hand(q, k, v, g, allowed), strict=True):
    np.testing.assert_allclose(ours, want, atol=1e-5)


def test_splash_rotates_and_scales():
  q, k, v, g = arrays(128, 128, 1, 1)
  rotate = lambda x: pe_jax.apply_rope(x, jnp.arange(128), jnp.float32(1e4 ** (-np.arange(8) / 8)))
  q_scaled = rotate(q) * 0.3 * WIDTH**0.5
  want = by_hand(q_scaled, rotate(k), v, g, np.tril(np.ones((2, 128, 128), bool)))[0]
  out = attend(q, k, v, Mask(causal=True), pe_jax.rope(), scale=0.3)
  np.testing.assert_allclose(out, want, atol=1e-5)


def test_the_log_sum_exp_is_that_of_the_logits():
  q, k, v, _ = arrays(128, 128, 2, 1)
  _, lse = SPLASH(
      q, k, v, jnp.arange(128), jnp.arange(128), encoding=pe_jax.none(), params={},
      mask=Mask(), scale=0.25, length=None, softcap=None,
  )
  logits = 0.25 * np.einsum('btnh,bskh->btns', np.float64(q), np.float64(k))
  np.testing.assert_allclose(lse, np.log(np.exp(logits).sum(axis=-1)), atol=1e-5)


@pytest.mark.parametrize(
    'changed, words',
    [
        ({'encoding': pe_jax.alibi()}, 'bias hook of alibi'),
        ({'encoding': pe_jax.cope(), 'mask': Mask(causal=True)}, 'logits hook of cope'),
        ({'softcap': 3.0}, 'softcap'),
        ({'mask': Mask(dense=jnp.ones((128, 128), bool))}, 'dense'),
        ({'mask': Mask(q_index=jnp.arange(128))}, 'q_index'),
        ({'keys': 100}, '128 queries of 100 keys'),
        ({'keys': 200}, 'multiples of 128'),
    ],
    ids=lambda part: part if isinstance(part, str) else '',
)
def test_splash_refuses_what_it_cannot_honour(changed, words):
  q, k, v, _ = arrays(128, changed.get('keys', 128), 2, 2)
  options = {'encoding': pe_jax.none(), 'params': {}, 'mask': Mask(), 'softcap': None}
  options |= {name: value for name, value in changed.items() if name != 'keys'}
  with pytest.raises(ValueError, match=words):
    SPLASH(q, k, v, None, None, scale=1.0, length=None, **options)
