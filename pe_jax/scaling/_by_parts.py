# SPDX-License-Identifier: Apache-2.0
"""Rules that keep the fast frequencies, slow down the slow ones and blend what lies between."""

import jax
import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.scaling._rule import check_factor
from pe_jax.scaling._rule import check_length
from pe_jax.scaling._rule import Frequencies
from pe_jax.scaling._rule import from_frequencies
from pe_jax.scaling._rule import inverse_frequencies
from pe_jax.scaling._rule import library
from pe_jax.scaling._rule import Number
from pe_jax.scaling._rule import Rule
from pe_jax.scaling._rule import Values


def blend(inv_freq: Values, share: Values, factor: Number) -> Values:
  """Computes (1 - share) w + share w / factor, exact where share is 0 or 1 or factor is 1."""
  xp = library(inv_freq, share, factor)
  slow = inv_freq / factor
  step = inv_freq - slow
  return xp.where(share < 0.5, inv_freq - share * step, slow + (1 - share) * step)


# --- NTK by parts, YaRN --------------------------------------------------------------------------


def yarn_ramp(
    width: int,
    base: Number,
    *,
    original_length: Number,
    beta_fast: Number = 32.0,
    beta_slow: Number = 1.0,
    truncate: bool = True,
) -> Values:
  """Computes how far each frequency is interpolated: 0 for the fast ones, 1 for the slow ones.

  A pair that turns r times within the original length L has the index
  d ln(L / (2 pi r)) / (2 ln base). The ramp rises from the index at r = beta_fast, or 0 if that is
  larger, to the one at r = beta_slow, or d - 1 if that is smaller. Where the two are equal it rises
  within 0.001 of an index, so as not to divide by 0.

  Args:
    width: number of rotated channels d.
    base: of the frequencies, above 1.
    original_length: L, in tokens.
    beta_fast: turns from which on a frequency stays.
    beta_slow: turns up to which a frequency is divided by the factor.
    truncate: whether the two indices are rounded outwards to whole ones.

  Returns:
    Shares between 0 and 1, shape [width / 2].

  Raises:
    ValueError: known numbers under which the ramp would run backwards.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, section 3.2.
  """
  xp = library(base, original_length, beta_fast, beta_slow)

  def index(turns):
    return width * xp.log(original_length / (2 * np.pi * turns)) / (2 * xp.log(base))

  low, high = index(beta_fast), index(beta_slow)
  if truncate:
    low, high = xp.floor(low), xp.ceil(high)
  low, high = xp.maximum(low, 0.0), xp.minimum(high, width - 1.0)
  if xp is np and low > high:
    raise ValueError(
        f'original_length={original_length}, base={base}, width={width}, beta_fast={beta_fast} and '
        f'beta_slow={beta_slow} leave no channel to blend: give the length the model was trained '
        'at, and betas that some channels turn within it.'
    )
  high = xp.where(high == low, low + 0.001, high)
  return xp.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)


def yarn_attention_factor(
    factor: Number, mscale: Number | None = None, mscale_all_dim: Number | None = None
) -> Number:
  """Computes 0.1 ln(factor) + 1, or (0.1 a ln(factor) + 1) / (0.1 b ln(factor) + 1) given a and b.

  Args:
    factor: of the lengths; up to 1 the result is 1.
    mscale: a. None or 0 counts as absent, and so does a without b.
    mscale_all_dim: b.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, equation 22; a, b: DeepSeek.

  >>> round(float(yarn_attention_factor(4)), 6)
  1.138629
  """
  xp = library(factor, mscale, mscale_all_dim)
  grown = 0.1 * xp.log(xp.maximum(factor, 1.0))
  if _absent(mscale) or _absent(mscale_all_dim):
    return grown + 1
  return (grown * mscale + 1) / (grown * mscale_all_dim + 1)


def _absent(number: Number | None) -> bool:
  return number is None or (not isinstance(number, jax.Array) and number == 0)


def ntk_by_parts_frequencies(width: int, base: Number, *, factor: Number, **ramp) -> Frequencies:
  """Divides slow frequencies by `factor`, see `ntk_by_parts`; `ramp` is for `yarn_ramp`. Traces."""
  return blend(inverse_frequencies(width, base), yarn_ramp(width, base, **ramp), factor), 1.0


@factory
def ntk_by_parts(
    *,
    factor: float,
    original_length: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Rule:
  """Divides slow frequencies by `factor`, keeps fast ones, blends between: YaRN without its factor.

  Args:
    factor: how many times the trained length is to be read, at least 1.
    original_length: the trained length, in tokens.
    beta_fast: a channel that turns more often than this within the trained length stays.
    beta_slow: a channel that turns less often than this is divided by `factor`.
    truncate: whether the ends of the blend are rounded outwards to whole channels.

  Raises:
    ValueError: a factor or a length below 1, or not beta_fast >= beta_slow > 0.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, section 3.2.
  """
  check_factor(factor)
  ramp = {'original_length': original_length, 'beta_fast': beta_fast, 'beta_slow': beta_slow}
  check_ramp(**ramp)
  return from_frequencies(
      bind(ntk_by_parts_frequencies, factor=factor, truncate=truncate, **ramp)
  )


def yarn_frequencies(
    width: int,
    base: Number,
    *,
    factor: Number,
    attention_factor: Number | None = None,
    mscale: Number | None = None,
    mscale_all_dim: Number | None = None,
    **ramp,
) -> Frequencies:
  """Computes `ntk_by_parts` and an attention factor, see `yarn`. Every number may be traced."""
  if attention_factor is None:
    attention_factor = yarn_attention_factor(factor, mscale, mscale_all_dim)
  inv_freq, _ = ntk_by_parts_frequencies(width, base, factor=factor, **ramp)
  return inv_freq, attention_factor


@factory
def yarn(
    *,
    factor: float,
    original_length: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> Rule:
  """Divides slow frequencies by `factor` and sharpens attention with 0.1 ln(factor) + 1.

  The defaults of the betas were tuned on models trained at thousands of tokens. At a trained length
  of 64 no channel turns 32 times: choose smaller ones, such as 4 and 0.25.

  Args:
    factor: how many times the trained length is to be read, at least 1.
    original_length: the trained length, in tokens.
    beta_fast: a channel that turns more often than this within the trained length stays.
    beta_slow: a channel that turns less often than this is divided by `factor`.
    truncate: whether the ends of the blend are rounded outwards to whole channels.
    attention_factor: multiplies cos and sin, in place of what the factor gives.
    mscale, mscale_all_dim: see `yarn_attention_factor`.

  Raises:
    ValueError: a factor or a length below 1, betas that are not beta_fast >= beta_slow > 0, an
      attention factor that is not above 0, or a negative mscale.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071.

  >>> frequencies, factor = yarn(factor=4, original_length=64)(width=8, base=1e4)
  >>> frequencies.round(6).tolist(), round(float(factor), 4)
  ([1.0, 0.0625, 0.0025, 0.00025], 1.1386)
  """
  check_factor(factor)
  ramp = {'original_length': original_length, 'beta_fast': beta_fast, 'beta_slow': beta_slow}
  check_ramp(**ramp)
  _check_sharpening(attention_factor, mscale, mscale_all_dim)
  return from_frequencies(
      bind(
          yarn_frequencies,
          factor=factor,
          attention_factor=attention_factor,
          mscale=mscale,
          mscale_all_dim=mscale_all_dim,
          truncate=truncate,
          **ramp,
      )
  )


def check_ramp(*, original_length: float, beta_fast: float, beta_slow: float):
  """Raises a ValueError where the ramp of `yarn_ramp` cannot be drawn."""
  check_length(original_length)
  if not beta_fast >= beta_slow > 0:
    raise ValueError(
        f'beta_fast={beta_fast!r}, beta_slow={beta_slow!r}: what turns beta_fast times is '
        'the faster channel, so choose beta_fast >= beta_slow > 0.'
    )


def _check_sharpening(attention_factor, mscale, mscale_all_dim):
  if attention_factor is not None:
    check_positive(attention_factor=attention_factor)
  for name, number in {'mscale': mscale, 'mscale_all_dim': mscale_all_dim}.items():
    if number is not None and not number >= 0:
      raise ValueError(f'{name}={number!r} must be above 0, or 0 for none.')


# --- Llama 3 -------------------------------------------------------------------------------------


def llama3_frequencies(
    width: int,
    base: Number,
    *,
    factor: Number,
    original_length: Number,
    low_freq_factor: Number = 1.0,
    high_freq_factor: Number = 4.0,
) -> Frequencies:
  """Divides slow frequencies by `factor`, see `llama3`. Every number may be traced."""
  inv_freq = inverse_frequencies(width, base)
  xp = library(inv_freq, original_length, low_freq_factor, high_freq_factor)
  turns = original_length * inv_freq / (2 * np.pi)
  kept = xp.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
  return blend(inv_freq, 1 - kept, factor), 1.0


@factory
def llama3(
    *,
    factor: float,
    original_length: float,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Rule:
  """Blends by the number of turns within the trained length, as Llama 3.1 and later do.

  Args:
    factor: how many times the trained length is to be read, at least 1.
    original_length: the trained length, in tokens.
    low_freq_factor: a channel that turns less often than this is divided by `factor`.
    high_freq_factor: a channel that turns more often than this stays.

  Raises:
    ValueError: a factor or a length below 1, or not high_freq_factor > low_freq_factor > 0.

  Reference: Llama team, 2024, https://arxiv.org/abs/2407.21783.
  """
  check_factor(factor)
  check_length(original_length)
  if not high_freq_factor > low_freq_factor > 0:
    raise ValueError(
        f'low_freq_factor={low_freq_factor!r}, high_freq_factor={high_freq_factor!r}: choose '
        'high_freq_factor > low_freq_factor > 0.'
    )
  return from_frequencies(
      bind(
          llama3_frequencies,
          factor=factor,
          original_length=original_length,
          low_freq_factor=low_freq_factor,
          high_freq_factor=high_freq_factor,
      )
  )
