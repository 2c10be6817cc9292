# SPDX-License-Identifier: Apache-2.0
"""The TPU's flash kernels, on a CPU that interprets them, against sums in float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from tests import pairwise

FLASH = pe_jax.bind(kernels.flash_tpu, interpret=True)
WIDTH, HEADS = 16, 4
SEGMENTS = jnp.array([[1] * 50 + [2] * 70 + [0] * 8, [0] * 10 + [3] * 118])
DIMS = pe_jax.Dims(model=HEADS * WIDTH, heads=HEADS)

# --- The formulas, in float64 --------------------------------------------------------------------


def per_head(x):
  return np.asarray(x)[:, None, None]


def alibi(p, i, j):
  return -per_head(p['slopes']) * abs(j - i)


def kerple(p, i, j):
  return -per_head(np.exp(p['log_r1'])) * np.log1p(per_head(np.exp(p['log_r2'])) * abs(j - i))


def t5(p, i, j):
  n = np.maximum(i - j, 0)
  wide = 16 + np.floor(np.log(np.maximum(n, 16) / 16) / np.log(8) * 16 + 1e-9)
  return p['table'][:, np.where(n < 16, n, np.minimum(wide, 31)).astype(int)]


def table(p, i, j):
  return p['table'][:, j - i + p['table'].shape[1] // 2]


def sandwich(p, i, j):
  del p
  total = sum(np.cos((j - i) * 1e4 ** (-f / 64)) for f in range(64))
  return per_head(HEADS / (8 * np.arange(1, HEADS + 1))) * total


def fire(p, i, j):
  c, threshold = np.exp(p['log_c']), np.exp(p['log_threshold'])
  x = np.log1p(c * abs(j - i)) / np.log1p(c * np.maximum(threshold, i))
  hidden = np.maximum(p['w'] * x[..., None] + p['b'], 0)
  return np.moveaxis(hidden @ p['v'].T, -1, 0)


def nothing(p, i, j):
  del p
  return np.zeros((HEADS, *np.broadcast_shapes(i.shape, j.shape)))


def by_parameter(bias, params, i, j, by_bias):
  """Gradients to all parameters, from differences of the bias, too small to meet a kink."""
  grads = {name: np.zeros_like(x) for name, x in params.items()}
  for name, x in params.items():
    for index in np.ndindex(x.shape):
      step = np.zeros_like(x)
      step[index] = 1e-7
      up, down = (bias(params | {name: y}, i, j) for y in (x + step, x - step))
      grads[name][index] = ((up - down) * by_bias).sum() / 2e-7
  return grads


def by_hand(bias, params, q, k, v, g, q_pos, k_pos, allowed):
  """The output, and its gradients to q, k, v and the parameters."""
  groups, scale = q.shape[2] // k.shape[2], WIDTH**-0.5
  k, v = (np.repeat(x, groups, axis=2) for x in (k, v))
  pairs = [(i[:, None], j[None, :]) for i, j in zip(q_pos, k_pos)]
  logits = scale * np.einsum('btnh,bsnh->bnts', q, k)
  logits += np.stack([bias(params, *pair) for pair in pairs])
  allowed = np.broadcast_to(allowed[:, None], logits.shape)
  weights = np.where(allowed, np.exp(logits), 0)
  total = weights.sum(axis=-1, keepdims=True)
  weights /= np.where(total > 0, total, 1)
  by_weight = np.einsum('btnh,bsnh->bnts', g, v)
  by_logit = weights * (by_weight - (weights * by_weight).sum(axis=-1, keepdims=True))
  back_k = scale * np.einsum('bnts,btnh->bsnh', by_logit, q)
  back_v = np.einsum('bnts,btnh->bsnh', weights, g)
  per_key_head = lambda x: x.reshape(*x.shape[:2], -1, groups, WIDTH).sum(axis=3)
  rows = [by_parameter(bias, params, *pair, by) for pair, by in zip(pairs, by_logit)]
  return (
      np.einsum('bnts,bsnh->btnh', weights, v),
      scale * np.einsum('bnts,bsnh->btnh', by_logit, k),
      per_key_head(back_k),
      per_key_head(back_v),
      {name: sum(row[name] for row in rows) for name in params},
  )


def seen(mask, queries, keys):
  """Who sees whom, [2, T, S]."""
  t, s = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None, :]
  allowed = np.ones((2, queries, keys), bool)
  if mask.causal:
    allowed &= s <= t
  if mask.window is not None:
    left, right = mask.window if isinstance(mask.window, tuple) else (mask.window - 1,) * 2
    allowed &= (s >= t - left) & (s <= t + right)
  if mask.q_segments is not None:
    ids = np.asarray(SEGMENTS)
    allowed &= (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] != 0)
  return allowed


# --- Values and gradients ------------------------------------------------------------------------


def arrays(queries, keys, kv_heads):
  draw = np.random.default_rng(0)
  q, g = draw.normal(size=(2, 2, queries, HEADS, WIDTH)).astype(np.float32)
  k, v = draw.normal(size=(2, 2, keys, kv_heads, WIDTH)).astype(np.float32)
  return q, k, v, g


def count(first, tokens, *, by=1):
  """Positions of two rows that start at `first`."""
  return np.stack([start + by * np.arange(tokens) for start in first])


CAUSAL = Mask(causal=True)
PACKED = Mask(causal=True, window=20, q_segments=SEGMENTS, k_segments=SEGMENTS)
CASES = {
    'grouped heads': (pe_jax.alibi_learned(), alibi, CAUSAL, 128, 384, 2, {}),
    'a window on both sides': (
        pe_jax.t5(),
        t5,
        Mask(window=(30, 70)),
        256,
        128,
        4,
        {'q_first': (7, 90), 'k_first': (0, 50)},
    ),
    'segments, and rows that see nothing': (
        pe_jax.kerple_log(), kerple, PACKED, 128, 128, 4, {}
    ),
    'a table': (pairwise.table(reach=130), table, Mask(), 128, 128, 1, {}),
    'no parameters': (pe_jax.sandwich(), sandwich, CAUSAL, 128, 128, 4, {}),
    'no bias': (pe_jax.none(), nothing, CAUSAL, 256, 256, 2, {}),
    'a hook by the pair': (
        pe_jax.fire(width=3, threshold=151.5),
        fire,
        CAUSAL,
        128,
        256,
        2,
        {'q_first': (128, 30), 'k_first': (0, 4)},
    ),
    'positions that do not count by one': (
        pe_jax.alibi_learned(), alibi, CAUSAL, 128, 128, 4, {'by': 3}
    ),
    'positions that do not count by one, and a gather': (
        pe_jax.t5(), t5, CAUSAL, 128, 128, 4, {'by': 2}
    ),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_the_kernels_are_attention_with_every_gradient(case):
  encoding, bias, mask, queries, keys, kv_heads, where = case
  q, k, v, g = arrays(queries, keys, kv_heads)
  by = where.get('by', 1)
  q_pos = count(where.get('q_first', (by * (keys - queries),) * 2), queries, by=by)
  k_pos = count(where.get('k_first', (0, 0)), keys, by=by)
  params = encoding.init(jax.random.key(1), DIMS)
  hidden = ~seen(mask, queries, keys).any(axis=1)[..., None, None]

  @jax.jit
  def run(q, k, v, params):
    def out(*args):
      *qkv, params = args
      positions = jnp.asarray(q_pos), jnp.asarray(k_pos)
      return pe_jax.attend(
          *qkv, *positions, encoding=encoding, params=params, mask=mask, kernel=FLASH
      )

    value, back = jax.vjp(out, q, k, v, params)
    return value, *back(g)

  wide = jax.tree.map(np.float64, (params, q, np.where(hidden, 0, k), np.where(hidden, 0, v), g))
  wants = by_hand(bias, *wide, q_pos, k_pos, seen(mask, queries, keys))
  ours = run(q, *(np.where(hidden, np.nan, x) for x in (k, v)), params)
  for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(wants), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()))


def test_a_scale_has_its_gradient():
  q, k, v, g = arrays(128, 128, 2)

  def total(scale, kernel):
    positions, options = jnp.arange(128), {'encoding': pe_jax.alibi(), 'params': {}}
    options |= {'mask': CAUSAL, 'scale': scale, 'kernel': kernel}
    return (g * pe_jax.attend(q, k, v, positions, positions, **options)).sum()

  ours, want = (jax.grad(total)(jnp.float32(0.3), kernel) for kernel in (FLASH, kernels.dense))
  np.testing.assert_allclose(ours, want, rtol=1e-5)


def test_hooks_may_be_many_and_rows_share_positions_or_not():
  q, k, v, _ = arrays(128, 128, HEADS)
  encoding = pe_jax.compose(pe_jax.rope(), pe_jax.alibi(), pe_jax.t5())
  params = encoding.init(jax.random.key(0), DIMS)
  where = {'encoding': encoding, 'params': params, 'mask': CAUSAL}
  for positions in (jnp.arange(128), jnp.stack([jnp.arange(128), 3 + jnp.arange(128)])):
    together = pe_jax.attend(q, k, v, positions, positions, **where, kernel=FLASH)
    want = pe_jax.attend(q, k, v, positions, positions, **where, kernel=kernels.dense)
    np.testing.assert_allclose(together, want, atol=1e-5)


# --- What is taken, and by what ------------------------------------------------------------------


@pytest.mark.parametrize(
    'encoding, dtype, tiled',
    [
        (pe_jax.t5(), jnp.int32, False),
        (pe_jax.fire(), jnp.int32, False),
        (pe_jax.none(), jnp.float32, False),
        (pe_jax.alibi(), jnp.float32, True),
    ],
    ids=['distances', 'pairs', 'no bias', 'coordinates that move'],
)
def test_the_backward_pass_is_blockwise_where_more_moves(encoding, dtype, tiled):
  q, k, v, _ = arrays(128, 128, HEADS)
  positions, params = jnp.arange(128, dtype=dtype), encoding.init(jax.random.key(0), DIMS)

  def total(q):
    options = {'encoding': encoding, 'params': params, 'mask': CAUSAL, 'kernel': FLASH}
    return pe_jax.attend(q, k, v, positions, positions, **options).sum()

  program = str(jax.make_jaxpr(jax.grad(total))(q))
  assert bool(re.search(r'pe_jax_flash_\w+_backward', program)) != tiled


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
