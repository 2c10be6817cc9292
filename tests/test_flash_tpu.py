# SPDX-License-Identifier: Apache-2.0
"""The flash kernel that has the bias in it, on a CPU that interprets it, against float64 sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask

FLASH = pe_jax.bind(kernels.flash_tpu, interpret=True)
WIDTH = 16
SLOPES = (0.5, 0.03, 0.2, 0.01)
HEADS = len(SLOPES)
SEGMENTS = jnp.array([[1] * 50 + [2] * 70 + [0] * 8, [0] * 10 + [3] * 118])


def arrays(queries, keys, kv_heads):
  draw = np.random.default_rng(0)
  q, g = draw.normal(size=(2, 2, queries, HEADS, WIDTH)).astype(np.float32)
  k, v = draw.normal(size=(2, 2, keys, kv_heads, WIDTH)).astype(np.float32)
  return q, k, v, g


def by_hand(q, k, v, g, q_pos, k_pos, allowed):
  """ALiBi's output, and its gradients to q, k, v and the slopes, in float64."""
  q, k, v, g = (np.float64(x) for x in (q, k, v, g))
  groups, scale = q.shape[2] // k.shape[2], WIDTH**-0.5
  k, v = (np.repeat(x, groups, axis=2) for x in (k, v))
  steps = np.abs(k_pos[None, :] - q_pos[:, None])
  logits = scale * np.einsum('btnh,bsnh->bnts', q, k) - np.array(SLOPES)[:, None, None] * steps
  allowed = np.broadcast_to(allowed[:, None], logits.shape)
  weights = np.where(allowed, np.exp(logits), 0)
  total = weights.sum(axis=-1, keepdims=True)
  weights /= np.where(total > 0, total, 1)
  by_weight = np.einsum('btnh,bsnh->bnts', g, v)
  by_logit = weights * (by_weight - (weights * by_weight).sum(axis=-1, keepdims=True))
  back_k = scale * np.einsum('bnts,btnh->bsnh', by_logit, q)
  back_v = np.einsum('bnts,btnh->bsnh', weights, g)
  per_key_head = lambda x: x.reshape(*x.shape[:2], -1, groups, WIDTH).sum(axis=3)
  return (
      np.einsum('bnts,bsnh->btnh', weights, v),
      scale * np.einsum('bnts,bsnh->btnh', by_logit, k),
      per_key_head(back_k),
      per_key_head(back_v),
      -(by_logit * steps).sum(axis=(0, 2, 3)),
  )


@pytest.mark.parametrize(
    'mask, keys, kv_heads',
    [
        (Mask(causal=True), 384, 2),
        (Mask(causal=True, window=20, q_segments=SEGMENTS, k_segments=SEGMENTS), 128, 4),
        (Mask(window=(9, 40)), 256, 1),
    ],
    ids=['causal, grouped heads', 'causal window of segments', 'window on both sides'],
)
def test_the_kernel_is_attention_with_every_gradient(mask, keys, kv_heads):
  queries = 128
  q, k, v, g = arrays(queries, keys, kv_heads)
  q_pos, k_pos = np.arange(keys - queries, keys) * 3, np.arange(keys) * 3
  encoding = pe_jax.alibi_learned(slopes=SLOPES)
  t, s = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None, :]
  allowed = np.ones((2, queries, keys), bool)
  if mask.causal:
    allowed &= s <= t
  if mask.window is not None:
    left, right = mask.window if isinstance(mask.window, tuple) else (19, 19)
    allowed &= (s >= t - left) & (s <= t + right)
  if mask.q_segments is not None:
    ids = np.asarray(SEGMENTS)
    allowed &= (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] != 0)

  @jax.jit
  def run(q, k, v, slopes):
    def out(q, k, v, slopes):
      where = {'encoding': encoding, 'params': {'slopes': slopes}, 'mask': mask, 'kernel': FLASH}
      return pe_jax.attend(q, k, v, jnp.asarray(q_pos), jnp.asarray(k_pos), **where)

    value, back = jax.vjp(out, q, k, v, slopes)
    return value, *back(g)

  wants = by_hand(q, k, v, g, q_pos, k_pos, allowed)
  for ours, want in zip(run(q, k, v, jnp.array(SLOPES)), wants, strict=True):
    np.testing.assert_allclose(ours, want, atol=1e-5 * max(1, np.abs(want).max()))


def test_rows_may_have_positions_of_their_own_and_hooks_may_be_many():
  q, k, v, _ = arrays(128, 128, HEADS)
  positions = jnp.stack([jnp.arange(128), jnp.arange(128) ** 2])
  encoding = pe_jax.compose(pe_jax.rope(), pe_jax.alibi())
  where = {'encoding': encoding, 'params': {}, 'mask': Mask(causal=True)}
  together = pe_jax.attend(q, k, v, positions, positions, **where, kernel=FLASH)
  want = pe_jax.attend(q, k, v, positions, positions, **where, kernel=kernels.dense)
  np.testing.assert_allclose(together, want, atol=1e-5)


@pytest.mark.parametrize(
    'changed, words',
    [
        ({'encoding': pe_jax.t5(), 'dtype': jnp.float32}, 'gather'),
        ({'encoding': pe_jax.shaw()}, 'value hook'),
        ({'encoding': pe_jax.cope(), 'mask': Mask(causal=True)}, 'logits hook of cope'),
        ({'softcap': 3.0}, 'softcap'),
        ({'mask': Mask(dense=jnp.ones((128, 128), bool))}, 'dense'),
        ({'keys': 200}, 'multiples of 128'),
    ],
    ids=lambda part: part if isinstance(part, str) else '',
)
def test_the_kernel_refuses_what_it_cannot_honour(changed, words):
  options = {'encoding': pe_jax.alibi(), 'mask': Mask(), 'softcap': None} | changed
  keys, dtype = options.pop('keys', 128), options.pop('dtype', jnp.int32)
  q, k, v, _ = arrays(128, keys, HEADS)
  encoding = options['encoding']
  dims = pe_jax.Dims(model=HEADS * WIDTH, heads=HEADS)
  params = pe_jax.assemble(encoding, encoding.init(jax.random.key(0), dims), dims)
  positions = (jnp.arange(x.shape[1], dtype=dtype)[None] for x in (q, k))
  with pytest.raises(ValueError, match=words):
    FLASH(q, k, v, *positions, params=params, scale=1.0, length=None, **options)
