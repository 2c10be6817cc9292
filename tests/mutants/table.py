# SPDX-License-Identifier: Apache-2.0
"""A table of wrong encodings, and what many of them are made of."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import pe_jax

DIMS = pe_jax.Dims(model=64, heads=4, kv_heads=2, head_dim=16)


class Mutant(NamedTuple):
  law: str  # that must flag it
  factory: Callable
  options: dict = {}  # of `check`


class Table(dict[str, Mutant]):
  """Mutants by name."""

  def add(self, law: str, **options):
    """Returns a decorator that adds a factory, under the law that must flag it."""

    def named(factory):
      self[factory.__name__] = Mutant(law, factory, options)
      return factory

    return named


# --- What wrong encodings are made of ------------------------------------------------------------


def record(**fields) -> pe_jax.Encoding:
  return pe_jax.Encoding(name=fields.pop('name', 'mutant'), **fields)


def turn(x, angle):
  """Rotates pairs (i, i + H / 2) by angles [..., T, H / 2]."""
  return pe_jax.rotate_half(x, jnp.cos(angle), jnp.sin(angle))


def frequencies(x, base=1e4):
  return jnp.asarray(base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]), jnp.float32)


def penalty(q_pos, k_pos, slopes):
  return pe_jax.alibi_bias(q_pos, k_pos, slopes)


def sloped_bias(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes'])


def four_slopes(dims):
  return {'slopes': jnp.asarray(pe_jax.alibi_slopes(dims.heads), jnp.float32)}


def biased(bias, **claims):
  claims = {'constants': four_slopes, 'per_head': ('slopes',), **claims}
  return record(bias=bias, **claims)
