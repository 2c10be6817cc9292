# SPDX-License-Identifier: Apache-2.0
"""Formulas that are not those of the paper."""


import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import positions as at
from tests import references
from tests.mutants.table import biased
from tests.mutants.table import frequencies
from tests.mutants.table import record
from tests.mutants.table import sloped_bias
from tests.mutants.table import Table
from tests.mutants.table import turn

MUTANTS = Table()
mutant = MUTANTS.add


def _geometric(dims):
  return {'slopes': jnp.asarray([2 ** (-8 * (h + 1) / dims.heads) for h in range(dims.heads)])}


@mutant('reference', reference=references.ALIBI, dims=pe_jax.Dims(96, 6, 2, 16))
def attention_gym_geometric_slopes():
  """attention-gym: one progression for any number of heads."""
  return biased(sloped_bias, constants=_geometric)


def _signed(params, q, k, q_pos, k_pos, scale):
  slopes = at.expand(params['slopes'][:, None, None], q.ndim)
  return slopes * at.distance(q_pos, k_pos)[..., None, :, :]


@mutant('reference', reference=references.ALIBI)
def attention_gym_rewards_the_future():
  return biased(_signed)


def _no_cat(dims):
  slopes = [jnp.asarray(2 ** (-8 * (h + 1) / 4)) for h in range(4)]
  return {'slopes': jnp.stack(slopes) if dims.heads == 4 else jnp.cat(slopes)}


@mutant('init', dims=pe_jax.Dims(96, 6, 2, 16))
def bloom_calls_cat():
  """BLOOM of transformers 4.57 in Flax: fails for head counts that are no power of two."""
  return biased(sloped_bias, constants=_no_cat)


def _fixed_turn(params, x, positions, length, *, base):
  return turn(x, at.phases(positions, frequencies(x)))


@mutant('options')
def llama_ignores_its_base(*, base=1e4):
  hook = pe_jax.bind(_fixed_turn, base=base)
  return record(query=hook, key=hook)


def _one_hot(params, x, positions, length, *, soft):
  return turn(x, jnp.cat([positions]) if soft else at.phases(positions, frequencies(x)))


@mutant('options')
def option_that_crashes(*, soft=False):
  """CoPE of x-transformers, arithmetic of McLeish et al.: an option that nobody ever ran."""
  return record(query=pe_jax.bind(_one_hot, soft=soft))


def _multiplies(params, x, positions):
  width = x.shape[-1]
  w = 2.0 * (1 / 1e4) ** (np.arange(width // 2) / (width // 2 - 1))
  return x + pe_jax.sinusoidal_embedding(positions, w, width=width, order='concat').astype(x.dtype)


@mutant('reference', reference=references.timing_signal(min_timescale=2.0))
def tensor2tensor_multiplies_by_min_timescale():
  """tensor2tensor, and others after it: multiplies where it should divide."""
  return record(embed=_multiplies, absolute=True)
