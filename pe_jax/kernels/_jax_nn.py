# SPDX-License-Identifier: Apache-2.0
"""jax.nn.dot_product_attention, with the encoding's bias as an array."""

import jax
import jax.numpy as jnp

from pe_jax.kernels._dense import check_bias
from pe_jax.kernels._dense import repeat_heads
from pe_jax.positions import expand


def _attention(
    q, k, v, q_coords, k_coords, *, encoding, params, mask, scale, length, softcap, implementation
):
  refused = {
      'softcap': softcap,
      f'the logits hook of {encoding}': encoding.logits,
      f'the value hook of {encoding}': encoding.value,
  }
  for what, given in refused.items():
    if given is not None:
      raise ValueError(
          f'jax.nn ({implementation}) cannot compute {what}: use pe_jax.kernels.dense.'
      )
  batch, (queries, heads), keys = q.shape[:-3], q.shape[-3:-1], k.shape[-3]
  bias = None
  if encoding.bias is not None:
    logits = jax.ShapeDtypeStruct((*batch, heads, queries, keys), jnp.float32)
    bias = encoding.bias(params, q, repeat_heads(k, heads), q_coords, k_coords, scale)
    bias = _flatten(check_bias(bias, logits, encoding), batch)
  allowed = mask.evaluate(queries, keys)
  if allowed is not None:
    allowed = _flatten(expand(allowed, q.ndim), batch)
  if encoding.query is not None:
    q = encoding.query(params, q, q_coords, length)
  if encoding.key is not None:
    k = encoding.key(params, k, k_coords, length)
  if implementation == 'cudnn' and bias is not None:
    bias = bias.astype(q.dtype)  # cuDNN takes no other
  out, lse = jax.nn.dot_product_attention(
      *(_flatten(x, batch) for x in (q, k, v)),
      bias=bias,
      mask=allowed,
      scale=scale,
      implementation=implementation,
      return_residual=True,
  )
  return out.reshape(*batch, *out.shape[1:]), lse.reshape(*batch, *lse.shape[1:])


def _flatten(x, batch):
  """Merges the batch axes into one; an array that rows share keeps an axis of size 1."""
  shared = all(size == 1 for size in x.shape[:-3])
  lead = (1,) * len(batch) if shared else batch
  size = 1
  for axis in lead:
    size *= axis
  return jnp.broadcast_to(x, (*lead, *x.shape[-3:])).reshape(size, *x.shape[-3:])


def xla(*args, **kwargs):
  """Computes attention with jax.nn's own XLA code; see `pe_jax.kernels` for the arguments."""
  return _attention(*args, **kwargs, implementation='xla')


def cudnn(*args, **kwargs):
  """Computes attention with cuDNN's fused kernel, on an NVIDIA GPU only.

  cuDNN takes float16 and bfloat16, and rounds the bias to that dtype.
  """
  return _attention(*args, **kwargs, implementation='cudnn')
