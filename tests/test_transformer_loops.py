# SPDX-License-Identifier: Apache-2.0
"""The Transformer against its formulas, one number at a time in float64."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.decoders import make
from tests.decoders import random_tokens
from tests.decoders import run
from tests.decoders import SMALL
from tests.decoders import T5
from tests.decoders import to_float64


def rms_norm_loops(x, scale):
  out = np.zeros_like(x)
  for t, row in enumerate(x):
    size = math.sqrt(sum(v * v for v in row) / row.size + 1e-6)
    for d, v in enumerate(row):
      out[t, d] = scale[d] * v / size
  return out


def layer_norm_loops(x, scale, bias=None):
  out = np.zeros_like(x)
  for t, row in enumerate(x):
    mean = sum(row) / row.size
    variance = sum((v - mean) ** 2 for v in row) / row.size
    for d, v in enumerate(row):
      out[t, d] = scale[d] * (v - mean) / math.sqrt(variance + 1e-6)
      out[t, d] += 0 if bias is None else bias[d]
  return out


def linear_loops(row, kernel, bias=None):
  """One token, [inputs] -> [outputs]; heads are flattened."""
  kernel = kernel.reshape(row.size, -1)
  bias = np.zeros(kernel.shape[1]) if bias is None else bias.ravel()
  return np.array([
      sum(row[i] * kernel[i, o] for i in range(row.size)) + bias[o] for o in range(bias.size)
  ])


def feed_forward_loops(x, params, activation):
  inner = [linear_loops(row, **params['inner']) for row in x]
  if activation == 'swiglu':
    half = inner[0].size // 2
    inner = [
        np.array([a / (1 + math.exp(-a)) * b for a, b in zip(row[:half], row[half:], strict=True)])
        for row in inner
    ]
  else:
    f = {'relu': lambda v: max(v, 0), 'gelu': tanh_gelu}[activation]
    inner = [np.array([f(v) for v in row]) for row in inner]
  return np.array([linear_loops(row, **params['out']) for row in inner])


def tanh_gelu(v):
  return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def attention_loops(x, params, dims, score, window=None):
  """Causal attention of one row [T, D]; score(x, n, t, s, q, k) is the logit of one pair."""
  q = [linear_loops(row, **params['query']).reshape(dims.heads, -1) for row in x]
  k, v = (
      [linear_loops(row, **params[name]).reshape(dims.kv_heads, -1) for row in x]
      for name in ('key', 'value')
  )
  out = np.zeros((len(x), dims.heads, dims.head_dim))
  for n in range(dims.heads):
    own = n // (dims.heads // dims.kv_heads)
    for t in range(len(x)):
      seen = [s for s in range(t + 1) if window is None or t - s < window]
      scores = [math.exp(score(x, n, t, s, q[t][n], k[s][own])) for s in seen]
      for weight, s in zip(scores, seen, strict=True):
        out[t, n] += weight / sum(scores) * v[s][own]
  return np.array([linear_loops(row.ravel(), **params['out']) for row in out])


def dot(q, k):
  return sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))


def score_none(params, x, n, t, s, q, k):
  del params, x, n, t, s
  return dot(q, k)


def score_rope(params, x, n, t, s, q, k):
  del params, x, n

  def turn(vector, position):
    half, out = len(vector) // 2, list(vector)
    for i in range(half):
      angle = position * 1e4 ** (-2 * i / len(vector))
      turned = complex(vector[i], vector[i + half]) * complex(math.cos(angle), math.sin(angle))
      out[i], out[i + half] = turned.real, turned.imag
    return out

  return dot(turn(q, t), turn(k, s))


def score_alibi(params, x, n, t, s, q, k):
  del params, x
  return dot(q, k) - 2.0 ** (-8 * (n + 1) / SMALL.heads) * (t - s)


def score_t5(params, x, n, t, s, q, k):
  """Six buckets: 0, 1 and 2, then up to 8 on a logarithmic scale."""
  del x
  bucket = t - s if t - s < 3 else min(3 + int(math.log((t - s) / 3) / math.log(8 / 3) * 3), 5)
  return dot(q, k) + params['table'][n, bucket]


def score_fox(params, x, n, t, s, q, k):
  gates = [sum(params['kernel'][n] * row) + params['bias'][n] for row in x[s + 1 : t + 1]]
  return dot(q, k) - sum(math.log(1 + math.exp(-gate)) for gate in gates)


def embed_sinusoidal(params, x, p, c):
  del params
  angle = p / 1e4 ** (2 * (c // 2) / len(x[p]))
  return x[p][c] + (math.cos(angle) if c % 2 else math.sin(angle))


def embed_learned(params, x, p, c):
  return x[p][c] + params['table'][p, c]


def embed_none(params, x, p, c):
  del params
  return x[p][c]


def decoder_loops(model, tokens, layers, embed=embed_none):
  """Logits of one row; layers has (index of the encoding, index of its copy, score, window)."""
  config, state = model.config, to_float64(model)
  norm = rms_norm_loops if config.norm == 'rms' else layer_norm_loops
  x = [state['embedding'][token] * math.sqrt(config.model) for token in tokens]
  at = [(p, c) for p in range(len(tokens)) for c in range(config.model)]
  x = np.reshape([embed(state.get('encoding_params'), x, p, c) for p, c in at], (len(tokens), -1))
  for i, (encoding, copy, score, window) in enumerate(layers):
    block = jax.tree.map(lambda leaf, i=i: leaf[i], state['blocks'])
    params = state.get('layer_encodings', {'params': {}})['params'].get(encoding, {})
    params = params if copy is None else {name: leaf[copy] for name, leaf in params.items()}
    score = functools.partial(score, params)
    for part in ('attention', 'feed_forward'):
      before = x
      x = norm(x, **block[f'{part}_norm']) if config.residual == 'pre' else x
      if part == 'attention':
        x = attention_loops(x, block[part], config.dims, score, window)
      else:
        x = feed_forward_loops(x, block[part], config.activation)
      x = before + x
      x = norm(x, **block[f'{part}_norm']) if config.residual == 'post' else x
  x = norm(x, **state['norm']) if config.residual == 'pre' else x
  out = state['embedding'] if config.tie else state['out']
  return state['gain'] * np.array([[sum(row * token) for token in out] for row in x])


LAYER = dict(norm='layer', residual='post', activation='relu', bias=True)
SWIGLU = dict(activation='swiglu', kv_heads=1, head_dim=6, hidden=20, tie=False, window=3)
WHOLE_MODELS = {
    'none': (pe_jax.none(), {}, [(0, None, score_none, None)] * 3, embed_none),
    'rope': (pe_jax.rope(), LAYER, [(0, None, score_rope, None)] * 3, embed_none),
    'alibi': (pe_jax.alibi(), SWIGLU, [(0, None, score_alibi, 3)] * 3, embed_none),
    't5': (T5, {'bias': True}, [(0, None, score_t5, None)] * 3, embed_none),
    't5 untied': (
        T5,
        {'sharing': 'untied'},
        [(0, copy, score_t5, None) for copy in range(3)],
        embed_none,
    ),
    'sinusoidal': (
        pe_jax.sinusoidal(),
        {**LAYER, 'residual': 'pre'},
        [(0, None, score_none, None)] * 3,
        embed_sinusoidal,
    ),
    'learned': (
        pe_jax.learned(length=16),
        {'residual': 'post'},
        [(0, None, score_none, None)] * 3,
        embed_learned,
    ),
    'fox': (pe_jax.fox(), {}, [(0, None, score_fox, None)] * 3, embed_none),
    'fox post': (pe_jax.fox(), LAYER, [(0, None, score_fox, None)] * 3, embed_none),
    'pattern': (
        (T5, pe_jax.compose(pe_jax.sinusoidal(), pe_jax.rope())),
        {'sharing': 'untied', 'window': (None, 4, 2)},
        [(0, 0, score_t5, None), (1, 0, score_rope, 4), (0, 1, score_t5, 2)],
        embed_sinusoidal,
    ),
}


@pytest.mark.parametrize('name', WHOLE_MODELS)
def test_forward_pass_equals_loops(name):
  encoding, options, layers, embed = WHOLE_MODELS[name]
  model = make(encoding, dataclasses.replace(SMALL, **options))
  tokens = random_tokens(2, 10)
  expected = [decoder_loops(model, row, layers, embed) for row in np.asarray(tokens)]
  np.testing.assert_allclose(run(model, tokens), expected, atol=2e-5, rtol=2e-4)


def test_parts_equal_loops():
  config = dataclasses.replace(SMALL, **LAYER)
  block = jax.tree.map(lambda leaf: leaf[0], make(T5, config).blocks)
  x = jax.random.normal(jax.random.key(3), (5, config.model))
  state, rows = to_float64(block), np.asarray(x, np.float64)
  options = dict(encoding=pe_jax.none(), params={}, mask=pe_jax.Mask(causal=True))
  attend = lambda x, *qkv: pe_jax.attend(*qkv, jnp.arange(5), jnp.arange(5), **options)
  score = functools.partial(score_none, {})
  for ours, expected in (
      (block.attention_norm(x), layer_norm_loops(rows, **state['attention_norm'])),
      (block.feed_forward(x), feed_forward_loops(rows, state['feed_forward'], 'relu')),
      (block.attention(x, attend), attention_loops(rows, state['attention'], config.dims, score)),
  ):
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
