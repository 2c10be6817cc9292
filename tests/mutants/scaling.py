# SPDX-License-Identifier: Apache-2.0
"""Wrong RoPEs, one defect each, and the law that must flag each of them.

They re-create what was found in public code, by running it or by reading it. What concerns every
encoding is in the other files here.
"""

import math

import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import positions as at
from pe_jax import scaling
from tests import references_scaling as references
from tests.mutants.table import Table

BASE, FACTOR, TRAINED = 1e4, 4, 512
YARN = references.rotation(
    lambda d, _: references.yarn(d, BASE, FACTOR, TRAINED), lambda _: 0.1 * math.log(FACTOR) + 1
)
LLAMA3 = references.rotation(lambda d, _: references.llama3(d, BASE, FACTOR, TRAINED))
FAST = {'factor': FACTOR, 'original_length': TRAINED, 'beta_fast': 32.0, 'beta_slow': 1.0}

MUTANTS = Table()
mutant = MUTANTS.add


def rule(frequencies, **options) -> pe_jax.Encoding:
  return pe_jax.rope(scaling=scaling.from_frequencies(pe_jax.bind(frequencies, **options)))


def ramp(low, high, pairs):
  return np.clip((np.arange(pairs) - low) / (high - low), 0, 1)


def index(turns, width, base):
  return width * math.log(TRAINED / (2 * math.pi * turns)) / (2 * math.log(base))


def blended(width, base, share, factor=FACTOR):
  inv_freq = np.asarray(references.loop(width, base))
  return (1 - share) * inv_freq + share * inv_freq / factor


def sharpened(factor=FACTOR):
  return 0.1 * math.log(factor) + 1


# --- Equinox: a cache keyed by too little --------------------------------------------------------

TABLES = {}


def _cached(width, base):
  inv_freq = TABLES.setdefault(width, base ** (-np.arange(0, width, 2) / width))
  return inv_freq, 1.0


@mutant('options')
def equinox_caches_by_width(*, base=1e4):
  own = scaling.from_frequencies(_cached)
  return pe_jax.rope(base=base, scaling=own)


# --- rotary-embedding-torch: positions in the dtype of the input ---------------------------------


def _narrow(params, x, coords, length):
  del length
  coords = coords.astype(x.dtype).astype(jnp.float32)
  return pe_jax.apply_rope(x, coords, params['inv_freq'], 1.0, params['turns'])


@mutant('told_apart')
def rotary_torch_narrow_positions():
  rope = pe_jax.rope()
  return pe_jax.Encoding(name='mutant', constants=rope.constants, query=_narrow, key=_narrow)


# --- transformers: dynamic NTK by the call, and by what was called before ------------------------


def _by_call(params, x, coords, length):
  del length
  seen = 1 + jnp.max(coords, axis=-1)
  own = scaling.dynamic_ntk(factor=2, original_length=16)
  inv_freq, _ = own.at(params, seen)
  return pe_jax.apply_rope(x, coords, inv_freq)


@mutant('decode')
def transformers_dynamic_ntk_by_the_call():
  constants = pe_jax.rope().constants
  return pe_jax.Encoding(name='mutant', constants=constants, query=_by_call, key=_by_call)


LONGEST = {'length': 0}


def _grows(params, x, coords, length):
  LONGEST['length'] = max(LONGEST['length'], x.shape[-3])
  own = scaling.dynamic_ntk(factor=2, original_length=4)
  inv_freq, _ = own.at(params, LONGEST['length'])
  return pe_jax.apply_rope(x, coords, inv_freq)


@mutant('pure')
def transformers_dynamic_ntk_never_shrinks():
  constants = pe_jax.rope().constants
  return pe_jax.Encoding(name='mutant', constants=constants, query=_grows, key=_grows)


# --- transformers: `truncate` read in the wrong place --------------------------------------------


def _deaf(width, base, *, truncate):
  del truncate
  return scaling.yarn_frequencies(width, base, **FAST)


@mutant('options')
def transformers_ignores_truncate(*, truncate=True):
  return rule(_deaf, truncate=truncate)


# --- Levanter: three deviations of YaRN, each alone ----------------------------------------------


def _half_width(width, base):
  low, high = (index(turns, width / 2, base) for turns in (32, 1))
  share = ramp(max(math.floor(low), 0), min(math.ceil(high), width - 1), width // 2)
  return blended(width, base, share), sharpened()


@mutant('reference', reference=YARN)
def levanter_ramp_over_half_the_width():
  return rule(_half_width)


def _divided_twice(width, base):
  inv_freq, factor = scaling.yarn_frequencies(width, base, **FAST)
  return inv_freq / FACTOR, factor


@mutant('reference', reference=YARN)
def levanter_divides_again():
  return rule(_divided_twice)


def _rooted(width, base):
  inv_freq, factor = scaling.yarn_frequencies(width, base, **FAST)
  return inv_freq, math.sqrt(factor)


@mutant('reference', reference=YARN)
def levanter_root_of_the_factor():
  return rule(_rooted)


def _squared(width, base):
  inv_freq, factor = scaling.yarn_frequencies(width, base, **FAST)
  return inv_freq, factor**2


@mutant('reference', reference=YARN)
def factor_applied_twice():
  return rule(_squared)


def _of_wavelengths(width, base):
  share = scaling.yarn_ramp(width, base, original_length=TRAINED)
  return 1 / blended(width, 1 / base, share, 1 / FACTOR), sharpened()


@mutant('reference', reference=YARN)
def blends_wavelengths():
  return rule(_of_wavelengths)


def _inverted(width, base):
  share = scaling.yarn_ramp(width, base, original_length=TRAINED)
  return blended(width, base, 1 - share), sharpened()


@mutant('reference', reference=YARN)
def axlearn_inverts_the_ramp():
  return rule(_inverted)


# --- tunix: no scaling at all --------------------------------------------------------------------


@mutant('reference', reference=LLAMA3)
def tunix_llama3_without_scaling():
  return pe_jax.rope(base=BASE)


def _swapped(width, base):
  inv_freq, factor = scaling.llama3_frequencies(width, base, factor=FACTOR, original_length=TRAINED)
  plain = np.asarray(references.loop(width, base))
  return np.where(inv_freq < plain, plain, plain / FACTOR), factor


@mutant('reference', reference=LLAMA3)
def llama3_scales_the_fast_channels():
  return rule(_swapped)


# --- MaxText: positions past the table take its last row -----------------------------------------


def _clamped(params, x, coords, length):
  del length
  coords = jnp.clip(coords, 0, TRAINED - 1)
  return pe_jax.apply_rope(x, coords, params['inv_freq'], params['attention_factor'])


@mutant('told_apart')
def maxtext_yarn_clamps():
  constants = pe_jax.rope(scaling=scaling.yarn(**FAST)).constants
  return pe_jax.Encoding(name='mutant', constants=constants, query=_clamped, key=_clamped)


# --- And of our own design -----------------------------------------------------------------------


@mutant('reference', reference=YARN)
def yarn_without_its_factor():
  return pe_jax.rope(scaling=scaling.ntk_by_parts(**FAST))


def _naive(params, x, coords, length):
  del length
  return pe_jax.rotate_half(x, *pe_jax.rope_tables(coords, params['inv_freq'].astype(x.dtype)))


@mutant('half_precision')
def frequencies_in_the_model_dtype():
  constants = pe_jax.rope().constants
  return pe_jax.Encoding(name='mutant', constants=constants, query=_naive, key=_naive)


def _late(params, x, coords, length):
  inv_freq = jnp.where(
      (at.as_float(length) > 64)[..., None], params['inv_freq'] / 2, params['inv_freq']
  )
  return pe_jax.apply_rope(x, coords, inv_freq)


@mutant('length')
def longrope_without_the_claim():
  constants = pe_jax.rope().constants
  return pe_jax.Encoding(name='mutant', constants=constants, query=_late, key=_late)
