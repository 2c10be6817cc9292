# SPDX-License-Identifier: Apache-2.0
"""The reference: every logit at once, every hook honoured."""

import jax
import jax.numpy as jnp

from pe_jax.positions import expand

Array = jax.Array


def dense(q, k, v, q_coords, k_coords, *, encoding, params, mask, scale, length, softcap):
  """Computes attention with an array of all logits; see `pe_jax.kernels` for the arguments."""
  by_query, lse = weights(
      q,
      k,
      v,
      q_coords,
      k_coords,
      encoding=encoding,
      params=params,
      mask=mask,
      scale=scale,
      length=length,
      softcap=softcap,
  )
  by_head = jnp.moveaxis(by_query, -2, -3)
  out = jnp.einsum(
      '...nts,...snh->...tnh',
      by_head.astype(v.dtype),
      repeat_heads(v, q.shape[-2]),
      preferred_element_type=jnp.float32,
  )
  if encoding.value is not None:
    out = out + encoding.value(params, by_head, q_coords, k_coords)
  return out.astype(v.dtype), lse


def weights(q, k, v, q_coords, k_coords, *, encoding, params, mask, scale, length, softcap):
  """Computes the attention weights, [..., T, N, S], in the place of the output."""
  del v
  raw_q, raw_k = q, repeat_heads(k, q.shape[-2])
  if encoding.query is not None:
    q = encoding.query(params, q, q_coords, length)
  if encoding.key is not None:
    k = encoding.key(params, k, k_coords, length)
  k = repeat_heads(k, q.shape[-2])
  logits = scale * jnp.einsum('...tnh,...snh->...nts', q, k, preferred_element_type=jnp.float32)
  if encoding.bias is not None:
    bias = encoding.bias(params, raw_q, raw_k, q_coords, k_coords, scale)
    logits = logits + check_bias(bias, logits, encoding)
  allowed = mask.evaluate(*logits.shape[-2:])
  if allowed is not None:
    allowed = expand(allowed, logits.ndim)
  if encoding.logits is not None:
    seen = jnp.ones_like(logits, bool) if allowed is None else allowed
    logits = encoding.logits(params, logits, raw_q, raw_k, q_coords, k_coords, seen)
  if softcap is not None:
    logits = softcap * jnp.tanh(logits / softcap)
  if allowed is not None:
    logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
  by_query = jnp.moveaxis(jax.nn.softmax(logits), -3, -2)
  return by_query, jnp.swapaxes(jax.nn.logsumexp(logits, axis=-1), -1, -2)


def repeat_heads(x: Array, heads: int) -> Array:
  """Gives each of `heads` query heads the key head that serves it, [..., S, heads, H]."""
  groups = heads // x.shape[-2]
  return x if groups == 1 else jnp.repeat(x, groups, axis=-2)


def check_bias(bias: Array, logits: Array, encoding) -> Array:
  """Returns the bias with the axes of the logits.

  Raises:
    ValueError: a bias for another number of heads, queries or keys.
  """
  bias = expand(bias, logits.ndim)
  fits = all(have in (1, want) for have, want in zip(bias.shape[:-3], logits.shape[:-3]))
  if bias.shape[-3:] != logits.shape[-3:] or not fits:
    raise ValueError(
        f'{encoding} gives a bias of shape {bias.shape} for logits [..., N, T, S] of shape '
        f'{logits.shape}: it must have the same heads, queries and keys. If it has more heads, '
        'name in per_head the leaves whose first axis is the head.'
    )
  return bias
