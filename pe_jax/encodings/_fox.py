# SPDX-License-Identifier: Apache-2.0
"""FoX, the forgetting Transformer: a gate read from each token fades all that came before it.

  f_t = sigmoid(w . x_t + b),   c_t = log f_1 + ... + log f_t,   bias_ij = c_i - c_j.

Reference: Lin et al., 2025, https://arxiv.org/abs/2503.02130.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import expand

Array = jax.Array


@jax.jit
def forget_gates(x: Array, kernel: Array, bias: Array) -> Array:
  """Computes log sigmoid(w_n . x_t + b_n) for every head n and token t.

  Args:
    x: hidden states, shape [..., T, D].
    kernel: w, shape [N, D].
    bias: b, shape [N].

  Returns:
    Logarithms of the gates, float32, at most 0, shape [..., N, T].
  """
  x, kernel = x.astype(jnp.float32), kernel.astype(jnp.float32)
  logits = jnp.einsum('...td,nd->...nt', x, kernel, precision='highest')
  return jax.nn.log_sigmoid(logits + expand(bias.astype(jnp.float32)[:, None], logits.ndim))


@jax.jit
def segmented_sum(terms: Array, segments: Array, carry: dict) -> tuple[Array, dict]:
  """Sums along the tokens, from 0 again wherever a new segment begins.

  Args:
    terms: shape [..., N, T].
    segments: int, 0 for padding, which adds nothing, shape [..., T].
    carry: {'segment': [...], 'sum': [..., N]} after the tokens before these; zeros at first.

  Returns:
    Sums up to and with each token, shape [..., N, T], and the carry after the last.
  """
  last = _last_segment(jnp.concatenate([carry['segment'][..., None], segments], axis=-1))
  fresh = (last[..., 1:] != last[..., :-1])[..., None, :]
  terms = jnp.where((segments == 0)[..., None, :], 0, terms)
  terms = jnp.concatenate([carry['sum'][..., None], terms], axis=-1)
  fresh = jnp.concatenate([jnp.zeros_like(fresh[..., :1]), fresh], axis=-1)
  fresh = jnp.broadcast_to(fresh, terms.shape)

  def add(left, right):
    return left[0] | right[0], jnp.where(right[0], right[1], left[1] + right[1])

  _, sums = jax.lax.associative_scan(add, (fresh, terms), axis=terms.ndim - 1)
  return sums[..., 1:], {'segment': last[..., -1], 'sum': sums[..., -1]}


def _last_segment(segments: Array) -> Array:
  """Replaces padding by the segment before it."""
  keep = lambda left, right: jnp.where(right == 0, left, right)
  return jax.lax.associative_scan(keep, segments, axis=segments.ndim - 1)


@jax.jit
def fox_bias(q_sums: Array, k_sums: Array) -> Array:
  """Computes c_i - c_j, the logarithm of the gates between key j and query i.

  Args:
    q_sums: c of the queries, shape [..., N, T].
    k_sums: c of the keys, shape [..., N, S].

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].
  """
  return q_sums[..., :, None] - k_sums[..., None, :]


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, gate_bias: float):
  kernel = jax.random.normal(key, (dims.heads, dims.model)) * dims.model**-0.5
  return {'kernel': kernel, 'bias': jnp.full(dims.heads, gate_bias, jnp.float32)}


def _carry(dims):
  return {'segment': jnp.zeros((), jnp.int32), 'sum': jnp.zeros(dims.heads)}


def _place(params, x, positions, segments, carry):
  del positions
  return segmented_sum(forget_gates(x, params['kernel'], params['bias']), segments, carry)


def _bias(params, q, k, q_coords, k_coords, scale):
  del params, q, k, scale
  return fox_bias(q_coords, k_coords)


@factory
def fox(*, gate_bias: float = 0.0) -> Encoding:
  """Fades every key by the product of the gates between it and the query.

  Args:
    gate_bias: initial b. The larger, the longer the memory at the start of training.

  Reference: Lin et al., 2025, https://arxiv.org/abs/2503.02130.
  """
  return Encoding(
      name='fox',
      init=bind(_init, gate_bias=gate_bias),
      place=_place,
      carry=_carry,
      bias=_bias,
      per_head=('kernel', 'bias'),
      relative=True,
      causal_only=True,
      order_dependent=True,
      reference='Lin et al., 2025, arXiv:2503.02130',
  )
