# SPDX-License-Identifier: Apache-2.0
"""Encodings of one's own: a bias of -m log(1 + distance), m trained or read from the token."""

import jax.numpy as jnp

import pe_jax


def _steps(q_pos, k_pos):
  return jnp.log1p(jnp.abs(pe_jax.positions.distance(q_pos, k_pos)))[..., None, :, :]


def _slopes(key, dims):
  return {'m': jnp.linspace(-3, 1, dims.heads)[:, None, None]}


def _trained(params, q, k, q_pos, k_pos, scale):
  return -pe_jax.positions.expand(jnp.logaddexp(0, params['m']), q.ndim) * _steps(q_pos, k_pos)


def log_bias():
  return pe_jax.Encoding(name='log', init=_slopes, bias=_trained, per_head=('m',), relative=True)


def _gate(key, dims):
  return {'w': jnp.zeros((dims.heads, dims.model))}


def _place(params, x, positions, segments, carry):
  m = jnp.einsum('...td,nd->...nt', x.astype(jnp.float32), params['w'], precision='highest')
  return (jnp.logaddexp(0, m), positions), carry


def _read(params, q, k, q_coords, k_coords, scale):
  return -q_coords[0][..., :, None] * _steps(q_coords[1], k_coords[1])


def gated():
  return pe_jax.Encoding(name='gated', init=_gate, place=_place, bias=_read, per_head=('w',))
