# SPDX-License-Identifier: Apache-2.0
"""FIRE: a small network of the distance over the query's position, both on a log scale.

  bias_nij = f_n(psi(|i - j|) / psi(max(L, i))),   psi(x) = log(1 + c x),
  f_n(x) = v_n1 relu(w_1 x + b_1) + ... + v_nF relu(w_F x + b_F).

A causal query sees distances from 0 to 1, however long the text; before the threshold L, only the
smaller ones. All of it is trained: w, b and v as they are, and c and L as log c and log L, so that
no step makes them negative. The network of the authors' code also adds a number to every bias of a
head; a softmax does not notice, and it is left out.

Reference: Li et al., 2023, https://arxiv.org/abs/2310.04418.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import check_sizes
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import as_float
from pe_jax.positions import distance
from pe_jax.positions import expand

Array = jax.Array


@jax.jit
def fire_ratio(q_pos: Array, k_pos: Array, c: Array, threshold: Array) -> Array:
  """Computes psi(|i - j|) / psi(max(L, i)) for every query i and key j, psi(x) = log(1 + c x).

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    c: how soon distances are told apart less, above 0, a scalar.
    threshold: L, at least 0, a scalar. Where it and the query's position are 0, the divisor is 1.

  Returns:
    Float32, shape [..., T, S].

  Reference: Li et al., 2023, https://arxiv.org/abs/2310.04418.

  >>> ratio = fire_ratio(jnp.array([9, 2]), jnp.array([6, 0]), jnp.ones(()), jnp.array(4))
  >>> [[f'{x:.3f}' for x in row] for row in ratio]
  [['0.602', '1.000'], ['1.000', '0.683']]
  """
  steps = jnp.log1p(c * jnp.abs(distance(q_pos, k_pos)))
  longest = jnp.log1p(c * jnp.maximum(threshold, as_float(q_pos)))
  longest = jnp.where(longest == 0, 1, longest)
  return steps / expand(longest, steps.ndim - 1)[..., None]


@jax.jit
def fire_bias(
    q_pos: Array, k_pos: Array, c: Array, threshold: Array, w: Array, b: Array, v: Array
) -> Array:
  """Computes sum_f v_nf relu(w_f x + b_f) of the ratio x, for every head n, query i and key j.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    c: as for `fire_ratio`.
    threshold: as for `fire_ratio`.
    w: weights of the features, shape [F].
    b: their biases, shape [F].
    v: what each feature adds for each head, shape [N, F].

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Li et al., 2023, https://arxiv.org/abs/2310.04418.
  """
  x = fire_ratio(q_pos, k_pos, c, threshold)[..., None, :, :]
  w, b, v = (jnp.asarray(array, jnp.float32) for array in (w, b, v))
  return jax.lax.platform_dependent(x, w, b, v, cpu=_in_turn, default=_at_once)


# Neither form has an array of the features of every pair. `_at_once` is one fused, elementwise
# expression, also inside a kernel. On a CPU it would be computed again for each of its uses, and
# sums over pairs, for the gradients of w, b and v, would be slow where a dot is fast: a product
# with a number that is written as a dot has a dot as its gradient.


def _at_once(x: Array, w: Array, b: Array, v: Array) -> Array:
  v = expand(v[:, None, None], x.ndim + 1)  # [..., N, 1, 1, F]
  terms = (v[..., f] * jnp.maximum(w[f] * x + b[f], 0) for f in range(w.shape[0]))
  return sum(terms)


def _in_turn(x: Array, w: Array, b: Array, v: Array) -> Array:
  x = x[..., 0, :, :]

  def add(f, total):
    hidden = jnp.maximum(jnp.einsum(',...ts->...ts', w[f], x) + b[f], 0)
    return total + jnp.einsum('n,...ts->...nts', v[:, f], hidden)

  # Zeros that vary over a mesh as x and v do.
  start = jnp.einsum('n,...ts->...nts', jnp.zeros_like(v[:, 0]), jnp.zeros_like(x))
  return jax.lax.fori_loop(0, w.shape[0], jax.checkpoint(add), start, unroll=8)


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, width: int, c: float, threshold: float):
  w_key, b_key, v_key = jax.random.split(key, 3)
  uniform = lambda key, shape, reach: jax.random.uniform(key, shape, minval=-reach, maxval=reach)
  return {
      'log_c': jnp.log(jnp.float32(c)),
      'log_threshold': jnp.log(jnp.float32(threshold)),
      'w': uniform(w_key, (width,), 1),
      'b': uniform(b_key, (width,), 1),
      'v': uniform(v_key, (dims.heads, width), width**-0.5),
  }


def _bias(params, q, k, q_coords, k_coords, scale):
  del q, k, scale
  c, threshold = jnp.exp(params['log_c']), jnp.exp(params['log_threshold'])
  return fire_bias(q_coords, k_coords, c, threshold, params['w'], params['b'], params['v'])


@factory
def fire(*, width: int = 32, c: float = 0.1, threshold: float = 512.0) -> Encoding:
  """Adds a trained function of the distance over the query's position to the scaled logits.

  Args:
    width: features F of the network.
    c: where c starts.
    threshold: where L starts. Queries before it see distances as the one at L does.

  Raises:
    ValueError: a width that is no positive integer, or a c or threshold that is not above 0.

  Reference: Li et al., 2023, https://arxiv.org/abs/2310.04418.
  """
  check_sizes(width=width)
  check_positive(c=c, threshold=threshold)
  return Encoding(
      name='fire',
      init=bind(_init, width=width, c=c, threshold=threshold),
      bias=_bias,
      per_head=('v',),
      reference='Li et al., 2023, arXiv:2310.04418',
  )
