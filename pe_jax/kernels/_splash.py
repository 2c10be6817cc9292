# SPDX-License-Identifier: Apache-2.0
"""JAX's own fused attention for a TPU, for encodings that add nothing to the logits."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
import jax.numpy as jnp

from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import join
from pe_jax.kernels._passes import mesh_axes
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask

Array = jax.Array

_LANES = 128  # a tile is a multiple of them


def splash(*args, interpret: bool = False, **kwargs):
  """Computes attention with Pallas splash attention; see `pe_jax.kernels` for the arguments.

  It honours causal masks, windows, segments and grouped heads, and skips tiles that the first two
  empty. q takes the scale before it meets k, in its own dtype. The log-sum-exp has no gradient.

  `bind(splash, interpret=True)` runs it on any machine, slowly, for tests.

  Raises:
    ValueError: what it cannot compute, see `refusal`.
  """
  call = prepare(*args, **kwargs)
  if reason := refusal(call):
    raise ValueError(
        f'splash attention cannot compute {reason}: use pe_jax.kernels.blockwise or dense.'
    )
  out, lse = attention(call, default=passes(call, interpret=interpret))
  return out, jax.lax.stop_gradient(lse)


def refusal(call: Call) -> str | None:
  """Names what splash attention cannot honour in a call; None where it can do all."""
  encoding, mask = call.encoding, call.mask
  queries, keys = call.q.shape[-3], call.k.shape[-3]
  refused = {
      f'the bias hook of {encoding}': encoding.bias is not None,
      f'the logits hook of {encoding}': encoding.logits is not None,
      f'the value hook of {encoding}': encoding.value is not None,
      'a softcap that may be traced': call.operands.shared['softcap'] is not None,
      'Mask(q_index=...) or k_index': mask.q_index is not None or mask.k_index is not None,
      f'{call.q.dtype}, which a TPU does not have': call.q.dtype == jnp.float16,
      'arrays that vary over a mesh, as JAX has it, but under shard_map(check_vma=False)': (
          mesh_axes((call.operands, mask))
      ),
      'Mask(where=...)': mask.where is not None,
      'Mask(dense=...)': mask.dense is not None,
      f'{queries} queries of {keys} keys': queries > keys,
      f'{queries} queries and {keys} keys, which must be multiples of {_LANES}': (
          queries % _LANES or keys % _LANES
      ),
  }
  return next((what for what, given in refused.items() if given), None)


def passes(call: Call, *, interpret: bool = False) -> Passes:
  """Makes both passes for a call that is not refused."""
  queries, keys = call.q.shape[-3], call.k.shape[-3]
  plan = _Plan(queries, keys, call.mask.sides(), interpret)
  return Passes(plan, _forward, _backward)


class _Plan(NamedTuple):
  """All that the kernel is made from."""

  queries: int
  keys: int
  sides: tuple[int | None, int | None]
  interpret: bool

  def kernel(self, heads: int, *, save_residuals: bool = False) -> Callable:
    """Makes the kernel over a batch, (q, k, v, segments) -> output, or that and residuals."""
    queries, keys = _tile(self.queries), _tile(self.keys)
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([self._mask()] * heads),
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=queries,
            block_kv=keys,
            block_q_dkv=queries,
            block_kv_dkv=keys,
            block_q_dq=queries,
            block_kv_dq=keys,
        ),
        head_shards=1,
        q_seq_shards=1,
        save_residuals=save_residuals,
        interpret=self.interpret,
    )
    return jax.vmap(kernel)

  def _mask(self):
    """Says what the order of the tokens allows, in splash attention's terms."""
    shape = (self.queries, self.keys)
    if self.sides == (None, None):
      return splash_attention_mask.FullMask(shape)
    # The T queries are the last of the S tokens.
    return splash_attention_mask.LocalMask(shape, self.sides, self.keys - self.queries)


def _tile(tokens: int) -> int:
  return next(size for size in (4 * _LANES, 2 * _LANES, _LANES) if tokens % size == 0)


def _precision(dtype):
  """The matmul precision for arrays of this dtype: a TPU's kernel refuses more than they have."""
  given = jax.config.jax_default_matmul_precision
  return jax.default_matmul_precision(given if dtype == jnp.float32 else 'default')


def _forward(plan: _Plan, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  q, k, v, segments = _inputs(operands, mask)
  with _precision(q.dtype):
    out, (lse,) = plan.kernel(q.shape[1], save_residuals=True)(q, k, v, segments)
  return _token_major(out, operands), _token_major(lse[..., None], operands)[..., 0]


def _backward(plan: _Plan, residuals, cotangents) -> Operands:
  """Computes the gradients with JAX's own backward kernels."""
  moving, fixed, mask, _, _ = residuals
  by_out, _ = cotangents

  def run(moving):
    # The same call as in the forward pass, which XLA then runs once: tests/test_tpu.py counts.
    q, k, v, segments = _inputs(join(moving, fixed), mask)
    return _token_major(plan.kernel(q.shape[1])(q, k, v, segments), moving)

  with _precision(moving.queries.rows['q'].dtype):
    _, back = jax.vjp(run, moving)
    return back(by_out)[0]


def _inputs(operands: Operands, mask: Mask):
  """Returns scaled q, k and v as [B, N, T, H], and segments as JAX's kernel takes them."""
  q, k, v = operands.queries.rows['q'], operands.keys.rows['k'], operands.keys.rows['v']
  batch = q.shape[:-3]
  q = (q * jnp.asarray(operands.shared['scale'], jnp.float32)).astype(q.dtype)
  segments = None
  if mask.q_segments is not None:
    spread = lambda ids: jnp.broadcast_to(ids, (*batch, ids.shape[-1])).reshape(-1, ids.shape[-1])
    segments = splash_attention_kernel.SegmentIds(*map(spread, (mask.q_segments, mask.k_segments)))
  return *map(_head_major, (q, k, v)), segments


def _head_major(x: Array) -> Array:
  """Reorders [..., T, N, H] as [B, N, T, H]."""
  x = jnp.swapaxes(x, -2, -3)
  return x.reshape(-1, *x.shape[-3:])


def _token_major(x: Array, operands: Operands) -> Array:
  """Undoes `_head_major`, in float32."""
  batch = operands.queries.rows['q'].shape[:-3]
  return jnp.swapaxes(x.reshape(*batch, *x.shape[1:]), -2, -3).astype(jnp.float32)
