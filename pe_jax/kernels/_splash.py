# SPDX-License-Identifier: Apache-2.0
"""JAX's own fused attention for a TPU, for encodings that add nothing to the logits."""

import functools

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
import jax.numpy as jnp

_LANES = 128  # a tile is a multiple of them
_TILE = 512


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
  make = functools.partial(
      splash_attention_kernel.make_splash_mha,
      splash_attention_mask.MultiHeadMask([_static_mask(mask, queries, keys)] * heads),
      block_sizes=_block_sizes(_tile(queries), _tile(keys)),
      head_shards=1,
      q_seq_shards=1,
      interpret=interpret,
  )
  out = jax.vmap(make())(q, k, v, segments)
  # Asked for both, JAX's kernel has no gradient. Where nobody reads this one, XLA drops it.
  still = jax.lax.stop_gradient((q, k, v))
  _, (lse,) = jax.vmap(make(save_residuals=True))(*still, segments)
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


def _static_mask(mask, queries: int, keys: int):
  """Says what order alone allows, in splash attention's terms."""
  before = after = None
  if mask.window is not None:
    one = isinstance(mask.window, int)
    before, after = (mask.window - 1, mask.window - 1) if one else mask.window
  if mask.causal:
    after = 0
  if before is None and after is None:
    return splash_attention_mask.FullMask((queries, keys))
  # The T queries are the last of the S tokens.
  return splash_attention_mask.LocalMask((queries, keys), (before, after), keys - queries)


def _tile(tokens: int) -> int:
  return next(size for size in (_TILE, _TILE // 2, _LANES) if tokens % size == 0)


def _block_sizes(queries: int, keys: int):
  return splash_attention_kernel.BlockSizes(
      block_q=queries,
      block_kv=keys,
      block_q_dkv=queries,
      block_kv_dkv=keys,
      block_q_dq=queries,
      block_kv_dq=keys,
  )
