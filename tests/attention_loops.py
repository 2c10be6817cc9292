# SPDX-License-Identifier: Apache-2.0
"""Attention as float64 loops, and small inputs to hold it against."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask

KERNELS = {'dense': kernels.dense, 'xla': kernels.xla}
each_kernel = pytest.mark.parametrize('kernel', KERNELS.values(), ids=KERNELS)
# jax.nn on a CPU has no float16.
TYPES = {'dense': (jnp.float32, jnp.bfloat16, jnp.float16), 'xla': (jnp.float32, jnp.bfloat16)}
each_kernel_and_type = pytest.mark.parametrize(
    'kernel, dtype', [(KERNELS[name], dtype) for name, dtypes in TYPES.items() for dtype in dtypes]
)


def inputs(seed=0, batch=2, queries=5, keys=5, heads=4, kv_heads=2, head_dim=8, dtype=jnp.float32):
  q_key, k_key, v_key = jax.random.split(jax.random.key(seed), 3)
  q = jax.random.normal(q_key, (batch, queries, heads, head_dim), dtype)
  k = jax.random.normal(k_key, (batch, keys, kv_heads, head_dim), dtype)
  v = jax.random.normal(v_key, (batch, keys, kv_heads, head_dim), dtype)
  return q, k, v, jnp.arange(keys - queries, keys), jnp.arange(keys)


def run(q, k, v, q_pos, k_pos, encoding=pe_jax.none(), params=None, **options):
  params = {} if params is None else params
  return pe_jax.attend(q, k, v, q_pos, k_pos, encoding=encoding, params=params, **options)


def loops(q, k, v, allowed, bias=None, scale=None, softcap=None):
  """Attention, one query of one head at a time; allowed and bias are functions of (b, n, t, s)."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  batch, queries, heads, head_dim = q.shape
  keys, groups = k.shape[1], heads // k.shape[2]
  scale = head_dim**-0.5 if scale is None else scale
  out = np.zeros(q.shape)
  for b in range(batch):
    for n in range(heads):
      for t in range(queries):
        seen = [s for s in range(keys) if allowed(b, n, t, s)]
        if not seen:
          continue
        logits = np.array([scale * q[b, t, n] @ k[b, s, n // groups] for s in seen])
        if bias is not None:
          logits += [bias(b, n, t, s) for s in seen]
        if softcap is not None:
          logits = softcap * np.tanh(logits / softcap)
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        for weight, s in zip(weights, seen, strict=True):
          out[b, t, n] += weight * v[b, s, n // groups]
  return out


def causal(queries, keys):
  return lambda b, n, t, s: s <= keys - queries + t


def padded():
  """Row 1 is padding but for its last three tokens."""
  q, k, v, _, _ = inputs(queries=6, keys=6)
  segments = jnp.array([[1] * 6, [0, 0, 0, 1, 1, 1]])
  return q, k, v, segments, Mask(causal=True, q_segments=segments, k_segments=segments)
