# SPDX-License-Identifier: Apache-2.0
"""Two encodings of one's own: -m log(1 + distance), and the same with m read from the hidden state."""

import jax
import jax.numpy as jnp
import pe_jax


def _log_distance(q_pos, k_pos):
  return jnp.log1p(jnp.abs(pe_jax.positions.distance(q_pos, k_pos)))[..., None, :, :]


def _slopes(key, dims):
  return {'m': jax.random.normal(key, (dims.heads, 1, 1))}


def _log_bias(params, q, k, q_pos, k_pos, scale):
  steps = _log_distance(q_pos, k_pos)
  return -jax.nn.softplus(pe_jax.positions.expand(params['m'], steps.ndim)) * steps


@pe_jax.factory
def log_bias():
  return pe_jax.Encoding(name='log_bias', init=_slopes, bias=_log_bias, per_head=('m',), relative=True, by_distance=True)


def _gate(key, dims, *, gain):
  return {'w': jax.random.normal(key, (dims.heads, dims.model)) * gain}


def _place(params, x, positions, segments, carry):
  gate = jnp.einsum('...td,nd->...nt', x.astype(jnp.float32), params['w'], precision='highest')
  return {'m': jax.nn.softplus(gate), 'position': positions}, carry


def _gated_bias(params, q, k, q_coords, k_coords, scale):
  return -q_coords['m'][..., :, None] * _log_distance(q_coords['position'], k_coords['position'])


@pe_jax.factory
def gated(*, gain=0.3):
  return pe_jax.Encoding(name='gated', init=pe_jax.bind(_gate, gain=gain), place=_place, bias=_gated_bias, per_head=('w',), relative=True)
