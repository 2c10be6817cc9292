# SPDX-License-Identifier: Apache-2.0
"""KERPLE: penalties on the logits that grow with distance, as trained kernels say.

  log    bias_nij = -r1_n log(1 + r2_n |j - i|),   r1, r2 > 0,
  power  bias_nij = -r1_n |j - i| ** r2_n,         r1 > 0, 0 < r2 <= 2.

The kernels are conditionally positive definite in these ranges only. What is trained are log r1,
log r2 and, for the exponent of the power, which stays below 2, log (r2 / (2 - r2)), so that no step
leads out of them.

Reference: Chi et al., 2022, https://arxiv.org/abs/2205.09921.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import distance
from pe_jax.positions import expand

Array = jax.Array


@jax.jit
def kerple_log_bias(q_pos: Array, k_pos: Array, r1: Array, r2: Array) -> Array:
  """Computes the penalty -r1_n log(1 + r2_n |j - i|) for every head n, query i and key j.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    r1: strength for each head, above 0, shape [N].
    r2: how soon the penalty levels off, for each head, above 0, shape [N].

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Chi et al., 2022, https://arxiv.org/abs/2205.09921.

  >>> one = jnp.ones(1)
  >>> [f'{x:.3f}' for x in kerple_log_bias(jnp.array([9]), jnp.array([9, 8, 0]), one, one)[0, 0]]
  ['-0.000', '-0.693', '-2.303']
  """
  steps = jnp.abs(distance(q_pos, k_pos))[..., None, :, :]
  return -_per_head(r1, steps) * jnp.log1p(_per_head(r2, steps) * steps)


@jax.jit
def kerple_power_bias(q_pos: Array, k_pos: Array, r1: Array, r2: Array) -> Array:
  """Computes the penalty -r1_n |j - i| ** r2_n for every head n, query i and key j.

  Its gradients are finite at distance 0 too, where those of a power below 1 are not.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    r1: strength for each head, above 0, shape [N].
    r2: exponent for each head, above 0 and at most 2, shape [N].

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Chi et al., 2022, https://arxiv.org/abs/2205.09921.

  >>> one, root = jnp.ones(1), jnp.array([0.5])
  >>> [f'{x:.3f}' for x in kerple_power_bias(jnp.array([9]), jnp.array([9, 8, 0]), one, root)[0, 0]]
  ['-0.000', '-1.000', '-3.000']
  """
  steps = jnp.abs(distance(q_pos, k_pos))[..., None, :, :]
  here = steps == 0
  power = jnp.exp(_per_head(r2, steps) * jnp.log(jnp.where(here, 1, steps)))
  return -_per_head(r1, steps) * jnp.where(here, 0, power)


def _per_head(x: Array, steps: Array) -> Array:
  return expand(jnp.asarray(x, jnp.float32)[:, None, None], steps.ndim)


# --- Hooks ---------------------------------------------------------------------------------------

_LEAST = 0.01  # of the authors' code, which draws from 0 on and then clips


def _log_init(key, dims):
  r1_key, r2_key = jax.random.split(key)
  r1 = jax.random.uniform(r1_key, (dims.heads,), minval=_LEAST, maxval=2)
  r2 = jax.random.uniform(r2_key, (dims.heads,), minval=_LEAST, maxval=1)
  return {'log_r1': jnp.log(r1), 'log_r2': jnp.log(r2)}


def _log_bias(params, q, k, q_coords, k_coords, scale):
  del q, k, scale
  return kerple_log_bias(q_coords, k_coords, jnp.exp(params['log_r1']), jnp.exp(params['log_r2']))


def _power_init(key, dims):
  r1_key, r2_key = jax.random.split(key)
  r1 = jax.random.uniform(r1_key, (dims.heads,), minval=_LEAST, maxval=1)
  r2 = jax.random.uniform(r2_key, (dims.heads,), minval=_LEAST, maxval=2 - _LEAST)
  return {'log_r1': jnp.log(r1), 'logit_r2': jnp.log(r2 / (2 - r2))}


def _power_bias(params, q, k, q_coords, k_coords, scale):
  del q, k, scale
  r2 = 2 * jax.nn.sigmoid(params['logit_r2'])
  return kerple_power_bias(q_coords, k_coords, jnp.exp(params['log_r1']), r2)


@factory
def kerple_log() -> Encoding:
  """Adds -r1 log(1 + r2 |distance|) to the scaled logits, with r1 and r2 trained for each head.

  As in the authors' code, r1 starts anywhere up to 2 and r2 anywhere up to 1.

  Reference: Chi et al., 2022, https://arxiv.org/abs/2205.09921.
  """
  return Encoding(
      name='kerple_log',
      init=_log_init,
      bias=_log_bias,
      per_head=('log_r1', 'log_r2'),
      relative=True,
      by_distance=True,
      reference='Chi et al., 2022, arXiv:2205.09921',
  )


@factory
def kerple_power() -> Encoding:
  """Adds -r1 |distance| ** r2 to the scaled logits, with r1 and r2 trained for each head.

  As in the authors' code, r1 starts anywhere up to 1 and r2 anywhere up to 2.

  Reference: Chi et al., 2022, https://arxiv.org/abs/2205.09921.
  """
  return Encoding(
      name='kerple_power',
      init=_power_init,
      bias=_power_bias,
      per_head=('log_r1', 'logit_r2'),
      relative=True,
      by_distance=True,
      reference='Chi et al., 2022, arXiv:2205.09921',
  )
