# SPDX-License-Identifier: Apache-2.0
"""JAX's own fused attention for a TPU, for encodings that add nothing to the logits."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
import jax.numpy as jnp

Array = jax.Array

_LANES = 128  # a tile is a multiple of them


def splash(
    q,
    k,
    v,
    q_coords,
    k_coords,
    *,
    encoding,
    params,
    mask,
    scale,
    length,
    softcap,
    interpret: bool = False,
):
  """Computes attention with Pallas splash attention; see `pe_jax.kernels` for the arguments.

  It honours causal masks, windows, segments and grouped heads, and skips tiles that the first two
  empty. q takes the scale before it meets k, in its own dtype. The log-sum-exp has no gradient.

  `bind(splash, interpret=True)` runs it on any machine, slowly, for tests.

  Raises:
    ValueError: what it cannot compute, see `refusal`.
  """
  if reason := refusal(q, k, encoding=encoding, mask=mask, softcap=softcap):
    raise ValueError(
        f'splash attention cannot compute {reason}: use pe_jax.kernels.blockwise or dense.'
    )
  batch, (queries, heads), keys = q.shape[:-3], q.shape[-3:-1], k.shape[-3]
  if encoding.query is not None:
    q = encoding.query(params, q, q_coords, length)
  if encoding.key is not None:
    k = encoding.key(params, k, k_coords, length)
  q = (q * jnp.asarray(scale, jnp.float32)).astype(q.dtype)
  q, k, v = map(_head_major, (q, k, v))
  segments = None
  if mask.q_segments is not None:
    spread = lambda ids: jnp.broadcast_to(ids, (*batch, ids.shape[-1])).reshape(-1, ids.shape[-1])
    segments = splash_attention_kernel.SegmentIds(*map(spread, (mask.q_segments, mask.k_segments)))
  plan = _Plan(queries, keys, heads, mask.causal, mask.window, interpret)
  out = _attention(plan, q, k, v, segments)
  # Asked for both, JAX's kernel has no gradient. Where nobody reads this one, XLA drops it.
  lse = _log_sum_exp(plan, *jax.lax.stop_gradient((q, k, v)), segments)
  out = jnp.swapaxes(out.reshape(*batch, *out.shape[1:]), -2, -3).astype(v.dtype)
  return out, jnp.swapaxes(lse.reshape(*batch, *lse.shape[1:]), -1, -2)


def refusal(q, k, *, encoding, mask, softcap) -> str | None:
  """Names what splash attention cannot honour among its arguments; None where it can do all."""
  queries, keys = q.shape[-3], k.shape[-3]
  refused = {
      f'the bias hook of {encoding}': encoding.bias is not None,
      f'the logits hook of {encoding}': encoding.logits is not None,
      f'the value hook of {encoding}': encoding.value is not None,
      'a softcap that may be traced': softcap is not None,
      'Mask(q_index=...) or k_index': mask.q_index is not None or mask.k_index is not None,
      'Mask(where=...)': mask.where is not None,
      'Mask(dense=...)': mask.dense is not None,
      f'{queries} queries of {keys} keys': queries > keys,
      f'{queries} queries and {keys} keys, which must be multiples of {_LANES}': (
          queries % _LANES or keys % _LANES
      ),
  }
  return next((what for what, given in refused.items() if given), None)


def _head_major(x):
  """Reorders [..., T, N, H] as [B, N, T, H]."""
  x = jnp.swapaxes(x, -2, -3)
  return x.reshape(-1, *x.shape[-3:])


class _Plan(NamedTuple):
  """All that the kernel is made from."""

  queries: int
  keys: int
  heads: int
  causal: bool
  window: int | tuple[int, int] | None
  interpret: bool

  def kernel(self, *, save_residuals: bool = False) -> Callable:
    """Makes the kernel over a batch, (q, k, v, segments) -> output, or that and residuals."""
    queries, keys = _tile(self.queries), _tile(self.keys)
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([self._mask()] * self.heads),
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
    before = after = None
    if self.window is not None:
      one = isinstance(self.window, int)
      before, after = (self.window - 1, self.window - 1) if one else self.window
    if self.causal:
      after = 0
    shape = (self.queries, self.keys)
    if before is None and after is None:
      return splash_attention_mask.FullMask(shape)
    # The T queries are the last of the S tokens.
    return splash_attention_mask.LocalMask(shape, (before, after), self.keys - self.queries)


def _tile(tokens: int) -> int:
  return next(size for size in (4 * _LANES, 2 * _LANES, _LANES) if tokens % size == 0)


def _precision(dtype):
  """The matmul precision for arrays of this dtype: a TPU's kernel refuses more than they have."""
  given = jax.config.jax_default_matmul_precision
  return jax.default_matmul_precision(given if dtype == jnp.float32 else 'default')


# JAX's kernel has a backward pass of its own. This one adds the precision, which it would otherwise
# take from where the gradient is asked for.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan: _Plan, q: Array, k: Array, v: Array, segments) -> Array:
  with _precision(q.dtype):
    return plan.kernel()(q, k, v, segments)


def _attention_forward(plan, q, k, v, segments):
  with _precision(q.dtype):
    return jax.vjp(lambda *args: plan.kernel()(*args, segments), q, k, v)


def _attention_backward(plan, back, cotangent):
  del plan
  with _precision(cotangent.dtype):
    return *back(cotangent), None


_attention.defvjp(_attention_forward, _attention_backward)


def _log_sum_exp(plan: _Plan, q: Array, k: Array, v: Array, segments) -> Array:
  with _precision(q.dtype):
    return plan.kernel(save_residuals=True)(q, k, v, segments)[1][0]
