# SPDX-License-Identifier: Apache-2.0
"""Attention for modules that take it as a function, such as Flax's multi-head attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.attention import attend
from pe_jax.base import Arrays
from pe_jax.base import Encoding
from pe_jax.masks import Mask

Array = jax.Array


def attention_fn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    encoding: Encoding,
    params: Arrays,
    q_pos: Any,
    k_pos: Any,
    is_causal: bool = False,
    dtype: Any = None,
    precision: Any = None,
    deterministic: bool = False,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    broadcast_dropout: bool = True,
    force_fp32_for_softmax: bool = True,
    module: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
) -> Array:
  """Computes `pe_jax.attend` with the arguments that Flax passes to its `attention_fn`.

  Bind the first four keywords with `functools.partial`. Linen passes only what a signature names:
  around this function, one of your own that takes **kwargs would lose the mask.

  Args:
    query: shape [..., T, N, H].
    key: shape [..., S, K, H].
    value: shape [..., S, K, H].
    bias: refused; it belongs in an encoding.
    mask: not 0 where a query may see a key, right-aligned against [..., N, T, S].
    encoding, params, q_pos, k_pos: as in `pe_jax.attend`.
    is_causal: a query sees no key after it; refused where T is not S.
    dtype: of the output, that of the inputs unless given.
    precision: of the matmuls, a name such as 'highest' or a jax.lax.Precision.
    deterministic: whether nothing is dropped.
    dropout_rate: of the weights; refused unless it is 0 or `deterministic` is set.
    dropout_rng, broadcast_dropout: how the weights would be dropped.
    force_fp32_for_softmax: it always is float32.
    module: refused; `pe_jax.attention_weights` returns the weights.
    qk_attn_weights_einsum, attn_weights_value_einsum: refused.

  Returns:
    The output, shape [..., T, N, H].

  Raises:
    ValueError: an argument that would be ignored.
  """
  del dropout_rng, broadcast_dropout, force_fp32_for_softmax
  refused = {
      'bias': (bias, 'add it in an encoding'),
      'module': (module, 'get the weights from pe_jax.attention_weights'),
      'qk_attn_weights_einsum': (qk_attn_weights_einsum, 'leave it out'),
      'attn_weights_value_einsum': (attn_weights_value_einsum, 'leave it out'),
      'dropout_rate': (None if deterministic else dropout_rate or None, 'drop the output instead'),
      'is_causal with fewer queries than keys': (
          is_causal and query.shape[-3] != key.shape[-3] or None,
          'give a mask',
      ),
  }
  for name, (given, instead) in refused.items():
    if given is not None:
      raise ValueError(f'attention_fn cannot honour {name}={given!r}: {instead}.')
  dtype = jnp.result_type(query, key, value) if dtype is None else dtype
  query, key, value = (x.astype(dtype) for x in (query, key, value))
  allowed = Mask(causal=is_causal, dense=None if mask is None else mask != 0)
  compute = functools.partial(attend, encoding=encoding, params=params, mask=allowed)
  if precision is None:
    return compute(query, key, value, q_pos, k_pos)
  with jax.default_matmul_precision(getattr(precision, 'name', precision).lower()):
    return compute(query, key, value, q_pos, k_pos)
