# SPDX-License-Identifier: Apache-2.0
"""jax.nn.dot_product_attention in both its forms: plain XLA, and cuDNN's fused kernel."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.kernels._dense import check_bias
from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import join
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import bias_by_pair
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask
from pe_jax.positions import expand

Array = jax.Array


def xla(*args, **kwargs):
  """Computes attention with jax.nn's own XLA code; see `pe_jax.kernels` for the arguments.

  The bias is an array. Raises a ValueError for softcap and for the hooks `logits` and `value`.
  """
  call = prepare(*args, **kwargs)
  _check(call, 'xla')
  mask = _flatten(_allowed(call.operands, call.mask), call.q.shape[:-3])
  scale = call.operands.shared['scale']
  return _attend(call.operands, call.encoding, mask=mask, scale=scale, implementation='xla')


def cudnn(*args, **kwargs):
  """Computes attention with cuDNN's fused kernel, on an NVIDIA GPU only; see `pe_jax.kernels`.

  cuDNN takes float16 and bfloat16. The bias is an array that is rounded to that dtype, and so is a
  mask that is more than causal or a causal window of as many queries as keys. q takes the scale
  before it meets k, in its own dtype. The log-sum-exp has no gradient.
  """
  call = prepare(*args, **kwargs)
  _check(call, 'cudnn')
  out, lse = attention(call, default=passes(call))
  return out, jax.lax.stop_gradient(lse)


def passes(call: Call) -> Passes:
  """Makes both passes of cuDNN for a call that is not refused."""
  return Passes(call.encoding, _forward, _backward)


def refusal(call: Call) -> str | None:
  """Names why cuDNN cannot take a call, or not without an array of all logits; None if it can."""
  encoding, (queries, keys) = call.encoding, (call.q.shape[-3], call.k.shape[-3])
  refused = {
      **_beyond(call),
      f'the bias hook of {encoding}': encoding.bias is not None,
      'a mask of more than the order of tokens': _order(call.mask, queries, keys) is None,
  }
  reason = next((what for what, given in refused.items() if given), None)
  if reason is not None:
    return reason
  try:  # whether there is a cuDNN, and whether it takes these shapes, JAX says as it traces
    jax.eval_shape(functools.partial(_forward, encoding), call.operands, call.mask)
  except (RuntimeError, NotImplementedError, ValueError) as error:
    return str(error)
  return None


def _beyond(call: Call) -> dict[str, bool]:
  """Returns what no form of jax.nn has, and whether the call asks for it."""
  return {
      'softcap': call.operands.shared['softcap'] is not None,
      f'the logits hook of {call.encoding}': call.encoding.logits is not None,
      f'the value hook of {call.encoding}': call.encoding.value is not None,
  }


def _check(call: Call, implementation: str):
  for what, given in _beyond(call).items():
    if given:
      raise ValueError(
          f'jax.nn ({implementation}) cannot compute {what}: use pe_jax.kernels.dense.'
      )


# --- cuDNN, forward and backward -----------------------------------------------------------------


def _forward(encoding, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  q, k = operands.queries.rows['q'], operands.keys.rows['k']
  # cuDNN wants a scale that is known when it is compiled.
  scaled = (q * jnp.asarray(operands.shared['scale'], jnp.float32)).astype(q.dtype)
  rows = {**operands.queries.rows, 'q': scaled}
  operands = operands._replace(queries=operands.queries._replace(rows=rows))
  order = _order(mask, q.shape[-3], k.shape[-3])
  if order is None:
    order = {'mask': _flatten(_allowed(operands, mask), q.shape[:-3])}
  out, lse = _attend(operands, encoding, **order, scale=1.0, implementation='cudnn')
  return out.astype(jnp.float32), lse.astype(jnp.float32)


def _backward(encoding, residuals, cotangents) -> Operands:
  moving, fixed, mask, _, _ = residuals
  by_out, _ = cotangents
  _, back = jax.vjp(lambda moving: _forward(encoding, join(moving, fixed), mask)[0], moving)
  return back(by_out)[0]


def _order(mask: Mask, queries: int, keys: int) -> dict[str, Any] | None:
  """Says a mask in jax.nn's options; None where it takes an array."""
  given = (mask.q_segments, mask.q_index, mask.k_index, mask.where, mask.dense)
  if any(field is not None for field in given):
    return None
  left, right = mask.sides()
  if left is None and right is None:
    return {'is_causal': False}
  if right != 0 or queries != keys:
    return None
  return {'is_causal': True} | ({} if left is None else {'local_window_size': (left, 0)})


# --- Both ----------------------------------------------------------------------------------------


def _attend(operands: Operands, encoding, **options) -> tuple[Array, Array]:
  q, k, v = operands.queries.rows['q'], operands.keys.rows['k'], operands.keys.rows['v']
  batch, bias = q.shape[:-3], None
  if encoding.bias is not None:
    logits = jax.ShapeDtypeStruct((*batch, q.shape[-2], q.shape[-3], k.shape[-3]), jnp.float32)
    bias = _flatten(check_bias(bias_by_pair(encoding, operands), logits, encoding), batch)
    # cuDNN takes no other dtype.
    bias = bias.astype(q.dtype) if options['implementation'] == 'cudnn' else bias
  q, k, v = (_flatten(x, batch) for x in (q, k, v))
  out, lse = jax.nn.dot_product_attention(q, k, v, bias=bias, return_residual=True, **options)
  return out.reshape(*batch, *out.shape[1:]), lse.reshape(*batch, *lse.shape[1:])


def _allowed(operands: Operands, mask: Mask) -> Array | None:
  """Builds the mask as an array with the axes of the logits, None where nothing is forbidden."""
  q, k = operands.queries.rows['q'], operands.keys.rows['k']
  allowed = mask.evaluate(q.shape[-3], k.shape[-3])
  return None if allowed is None else expand(allowed, q.ndim)


def _flatten(x: Array | None, batch: tuple[int, ...]) -> Array | None:
  """Merges the batch axes into one; an array that rows share keeps an axis of size 1."""
  if x is None:
    return None
  shared = all(size == 1 for size in x.shape[:-3])
  lead = (1,) * len(batch) if shared else batch
  return jnp.broadcast_to(x, (*lead, *x.shape[-3:])).reshape(math.prod(lead), *x.shape[-3:])
