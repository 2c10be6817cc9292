# SPDX-License-Identifier: Apache-2.0
"""Rules that read the length of the text. Keys are cached before they are rotated.

Each is a function of (width, base, length): the length is a number of tokens or an array [...], one
for each row, and may be traced.
"""

import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Arrays
from pe_jax.positions import expand
from pe_jax.scaling._by_parts import blend
from pe_jax.scaling._by_parts import check_ramp
from pe_jax.scaling._by_parts import yarn_attention_factor
from pe_jax.scaling._by_parts import yarn_ramp
from pe_jax.scaling._fixed import ntk_exponents
from pe_jax.scaling._rule import check_factor
from pe_jax.scaling._rule import check_length
from pe_jax.scaling._rule import Frequencies
from pe_jax.scaling._rule import inverse_frequencies
from pe_jax.scaling._rule import library
from pe_jax.scaling._rule import Number
from pe_jax.scaling._rule import Rule


def _by_row(arrays: Arrays, length: Number, *names: str):
  """Returns the length as [..., 1], and arrays with as many axes."""
  xp = library(length, *(arrays[name] for name in names))
  length = xp.asarray(length, float)[..., None]  # an integer would overflow in a product
  ndim = max(length.ndim, *(arrays[name].ndim for name in names))
  return expand(length, ndim), *(expand(xp.asarray(arrays[name]), ndim) for name in names)


# --- Dynamic NTK ---------------------------------------------------------------------------------


def _plain(width: int, base: Number) -> Arrays:
  return {'inv_freq': inverse_frequencies(width, base), 'attention_factor': 1.0}


def _dynamic_ntk(arrays: Arrays, length: Number, *, factor: Number, original_length: Number):
  length, inv_freq = _by_row(arrays, length, 'inv_freq')
  xp = library(length, inv_freq, factor, original_length)
  times = xp.maximum(factor * length / original_length - (factor - 1), 1.0)
  exponents = expand(ntk_exponents(inv_freq.shape[-1]), times.ndim)
  return inv_freq * times**exponents, arrays['attention_factor']


def dynamic_ntk_frequencies(
    width: int, base: Number, length: Number, *, factor: Number, original_length: Number
) -> Frequencies:
  """Raises the base with the length, see `dynamic_ntk`. Every number may be traced."""
  arrays = _plain(width, base)
  return _dynamic_ntk(arrays, length, factor=factor, original_length=original_length)


@factory
def dynamic_ntk(*, factor: float, original_length: float) -> Rule:
  """Raises the base with the length L: base * (factor L / L0 - (factor - 1)) ** (d / (d - 2)).

  Up to the original length L0 nothing changes.

  Args:
    factor: how fast the base grows, at least 1. It is not the ratio of lengths.
    original_length: the trained length L0, in tokens.

  Raises:
    ValueError: a factor or a length below 1.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, section 3.3.
  """
  check_factor(factor)
  check_length(original_length)
  return Rule(
      name='dynamic_ntk',
      arrays=_plain,
      at=bind(_dynamic_ntk, factor=factor, original_length=original_length),
      length_dependent=True,
  )


# --- Dynamic YaRN --------------------------------------------------------------------------------


def _ramped(width: int, base: Number, **ramp) -> Arrays:
  return {**_plain(width, base), 'ramp': yarn_ramp(width, base, **ramp)}


def _dynamic_yarn(arrays: Arrays, length: Number, *, original_length: Number):
  length, inv_freq, ramp = _by_row(arrays, length, 'inv_freq', 'ramp')
  factor = library(length, original_length).maximum(length / original_length, 1.0)
  sharpening = arrays['attention_factor'] * yarn_attention_factor(factor[..., 0])
  return blend(inv_freq, ramp, factor), sharpening


def dynamic_yarn_frequencies(
    width: int, base: Number, length: Number, *, original_length: Number, **ramp
) -> Frequencies:
  """Computes YaRN with the factor that the length asks for, see `dynamic_yarn`. Traces."""
  arrays = _ramped(width, base, original_length=original_length, **ramp)
  return _dynamic_yarn(arrays, length, original_length=original_length)


@factory
def dynamic_yarn(
    *,
    original_length: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Rule:
  """Applies `yarn` with the factor max(1, L / L0) at the length L.

  Up to the original length L0 nothing changes.

  Args:
    original_length: the trained length L0, in tokens.
    beta_fast: a channel that turns more often than this within L0 stays.
    beta_slow: a channel that turns less often than this is divided by the factor.
    truncate: whether the ends of the blend are rounded outwards to whole channels.

  Raises:
    ValueError: a length below 1, or betas that are not beta_fast >= beta_slow > 0.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, section 3.3.
  """
  ramp = {'original_length': original_length, 'beta_fast': beta_fast, 'beta_slow': beta_slow}
  check_ramp(**ramp)
  return Rule(
      name='dynamic_yarn',
      arrays=bind(_ramped, truncate=truncate, **ramp),
      at=bind(_dynamic_yarn, original_length=original_length),
      length_dependent=True,
  )


# --- LongRoPE ------------------------------------------------------------------------------------


def longrope_attention_factor(factor: Number, original_length: Number) -> Number:
  """Computes sqrt(1 + ln(factor) / ln(original_length)), 1 up to a factor of 1.

  Reference: Ding et al., 2024, https://arxiv.org/abs/2402.13753.
  """
  xp = library(factor, original_length)
  return xp.sqrt(1 + xp.log(xp.maximum(factor, 1.0)) / xp.log(original_length))


def _short_and_long(
    width: int,
    base: Number,
    *,
    short_factor: tuple[float, ...],
    long_factor: tuple[float, ...],
    attention_factor: Number,
) -> Arrays:
  inv_freq = inverse_frequencies(width, base)
  for name, factors in {'short_factor': short_factor, 'long_factor': long_factor}.items():
    if len(factors) != width // 2:
      raise ValueError(
          f'{name} has {len(factors)} numbers: width={width} takes {width // 2}, one for each pair.'
      )
  short, long = (inv_freq / library(*f).asarray(f) for f in (short_factor, long_factor))
  return {'inv_freq': short, 'long_inv_freq': long, 'attention_factor': attention_factor}


def _longrope(arrays: Arrays, length: Number, *, original_length: Number):
  length, short, long = _by_row(arrays, length, 'inv_freq', 'long_inv_freq')
  xp = library(length, short, long, original_length)
  return xp.where(length > original_length, long, short), arrays['attention_factor']


def longrope_frequencies(
    width: int, base: Number, length: Number, *, original_length: Number, **factors
) -> Frequencies:
  """Chooses between two lists of frequencies, see `longrope`; every number may be traced.

  `factors` are short_factor, long_factor and attention_factor.
  """
  arrays = _short_and_long(width, base, **factors)
  return _longrope(arrays, length, original_length=original_length)


@factory
def longrope(
    *,
    short_factor: tuple[float, ...],
    long_factor: tuple[float, ...],
    original_length: float,
    factor: float | None = None,
    attention_factor: float | None = None,
) -> Rule:
  """Divides each frequency by a number of its own, from one list up to L0 and another beyond it.

  Args:
    short_factor: a number for each pair of channels, for texts of at most the original length.
    long_factor: the same for longer texts.
    original_length: the trained length L0, in tokens.
    factor: how many times L0 is to be read; gives the attention factor.
    attention_factor: multiplies cos and sin at every length, in place of what `factor` gives.

  Raises:
    ValueError: lists of different length or with a number that is not above 0, a length of at most
      1, a factor below 1, or neither a factor nor an attention factor.

  Reference: Ding et al., 2024, https://arxiv.org/abs/2402.13753.
  """
  _check_longrope(short_factor, long_factor, original_length, factor, attention_factor)
  if attention_factor is None:
    attention_factor = longrope_attention_factor(factor, original_length)
  return Rule(
      name='longrope',
      arrays=bind(
          _short_and_long,
          short_factor=short_factor,
          long_factor=long_factor,
          attention_factor=attention_factor,
      ),
      at=bind(_longrope, original_length=original_length),
      length_dependent=True,
      frequencies=('inv_freq', 'long_inv_freq'),
  )


def _check_longrope(short_factor, long_factor, original_length, factor, attention_factor):
  for name, factors in {'short_factor': short_factor, 'long_factor': long_factor}.items():
    if not isinstance(factors, tuple) or not factors or not all(f > 0 for f in factors):
      raise ValueError(f'{name}={factors!r} must list numbers above 0, one for each channel pair.')
  if len(short_factor) != len(long_factor):
    raise ValueError(
        f'short_factor has {len(short_factor)} numbers and long_factor {len(long_factor)}: both '
        'take one for each pair of channels.'
    )
  if not 1 < original_length < np.inf:
    raise ValueError(f'original_length={original_length!r} must be above 1: it is in tokens.')
  if attention_factor is not None:
    check_positive(attention_factor=attention_factor)
  elif factor is None:
    raise ValueError('longrope takes factor, how many times original_length, or attention_factor.')
  if factor is not None:
    check_factor(factor)
