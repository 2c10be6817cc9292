# SPDX-License-Identifier: Apache-2.0
"""Rules that multiply each frequency by a number of its own, whatever the length."""

import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.scaling._rule import check_factor
from pe_jax.scaling._rule import Frequencies
from pe_jax.scaling._rule import from_frequencies
from pe_jax.scaling._rule import inverse_frequencies
from pe_jax.scaling._rule import library
from pe_jax.scaling._rule import Number
from pe_jax.scaling._rule import Rule


def default_frequencies(width: int, base: Number) -> Frequencies:
  """Returns RoPE's frequencies as they are, and 1."""
  return inverse_frequencies(width, base), 1.0


@factory
def default() -> Rule:
  """Leaves RoPE's frequencies as they are."""
  return from_frequencies(default_frequencies)


# --- Position interpolation ----------------------------------------------------------------------


def linear_frequencies(width: int, base: Number, *, factor: Number) -> Frequencies:
  """Divides every frequency by `factor`; see `linear`. Every number may be traced."""
  return inverse_frequencies(width, base) / factor, 1.0


@factory
def linear(*, factor: float) -> Rule:
  """Divides every frequency by `factor`: position interpolation.

  Args:
    factor: how many times the trained length is to be read, at least 1.

  Raises:
    ValueError: a factor below 1.

  Reference: Chen et al., 2023, https://arxiv.org/abs/2306.15595.

  >>> linear(factor=4)(width=4, base=1e4)[0].tolist()
  [0.25, 0.0025]
  """
  check_factor(factor)
  return from_frequencies(bind(linear_frequencies, factor=factor))


# --- NTK-aware rules -----------------------------------------------------------------------------


def ntk_frequencies(width: int, base: Number, *, factor: Number) -> Frequencies:
  """Raises the base to base * factor ** (d / (d - 2)); see `ntk`. Every number may be traced."""
  inv_freq = inverse_frequencies(width, base)
  return inv_freq * factor ** ntk_exponents(inv_freq.shape[-1]), 1.0


def ntk_exponents(pairs: int) -> np.ndarray:
  """Returns the power of the factor s for each frequency: 0 for the first, -1 for the last.

  With the base B = b s ** (d / (d - 2)) the frequencies are
  B ** (-2 i / d) = b ** (-2 i / d) s ** (-i / (d / 2 - 1)).

  Args:
    pairs: d / 2, how many frequencies there are.
  """
  return -np.arange(pairs) / max(pairs - 1, 1)


@factory
def ntk(*, factor: float) -> Rule:
  """Raises the base to base * factor ** (d / (d - 2)), d the rotated width.

  The first frequency stays, the last is divided by `factor`.

  Args:
    factor: how many times the trained length is to be read, at least 1.

  Raises:
    ValueError: a factor below 1.

  Reference: bloc97, 2023, "NTK-aware scaled RoPE"; Peng et al., 2023,
  https://arxiv.org/abs/2309.00071, section 3.1.

  >>> ntk(factor=4)(width=4, base=1e4)[0].tolist()
  [1.0, 0.0025]
  """
  check_factor(factor)
  return from_frequencies(bind(ntk_frequencies, factor=factor))


def ntk_mixed_frequencies(
    width: int, base: Number, *, factor: Number, exponent: Number = 0.625
) -> Frequencies:
  """Divides frequency i, counted from 1, by exp(a i ** exponent); see `ntk_mixed`. Traces."""
  xp = library(base, factor, exponent)
  inv_freq = inverse_frequencies(width, base)
  half = inv_freq.shape[-1]
  share = (np.arange(1, half + 1) / half) ** exponent
  return inv_freq * xp.exp(-xp.log(factor) * share), 1.0


@factory
def ntk_mixed(*, factor: float, exponent: float = 0.625) -> Rule:
  """Divides frequency i by exp(a i ** exponent), where i = 1 .. d / 2.

  a = ln s / (d / 2) ** exponent. Every frequency slows down, the last by the factor s.

  Args:
    factor: s, how many times the trained length is to be read, at least 1.
    exponent: how soon the slowing sets in; 1 is `ntk_fixed`.

  Raises:
    ValueError: a factor below 1, or an exponent that is not above 0.

  Reference: Su, 2023, https://kexue.fm/archives/9706.
  """
  check_factor(factor)
  check_positive(exponent=exponent)
  return from_frequencies(bind(ntk_mixed_frequencies, factor=factor, exponent=exponent))


def ntk_fixed_frequencies(width: int, base: Number, *, factor: Number) -> Frequencies:
  """Multiplies the base by `factor` and divides by factor ** (2 / d); see `ntk_fixed`. Traces."""
  return ntk_mixed_frequencies(width, base, factor=factor, exponent=1.0)


@factory
def ntk_fixed(*, factor: float) -> Rule:
  """Divides frequency i by factor ** (2 i / d) with i = 1 .. d / 2, d the rotated width.

  That is a base `factor` times larger, and every frequency divided by factor ** (2 / d). The first
  slows down a little, where in `ntk` it stays.

  Args:
    factor: how many times the trained length is to be read, at least 1.

  Raises:
    ValueError: a factor below 1.

  Reference: Su, 2023, https://kexue.fm/archives/9706.
  """
  check_factor(factor)
  return from_frequencies(bind(ntk_fixed_frequencies, factor=factor))


# --- Fewer frequencies, other frequencies --------------------------------------------------------


def proportional_frequencies(
    width: int, base: Number, *, fraction: Number, factor: Number = 1.0
) -> Frequencies:
  """Keeps floor(fraction d / 2) frequencies and zeroes the others; see `proportional`. Traces."""
  xp = library(base, fraction, factor)
  inv_freq = inverse_frequencies(width, base)
  kept = np.arange(inv_freq.shape[-1]) < xp.floor(fraction * width / 2)
  return xp.where(kept, inv_freq / factor, 0.0), 1.0


@factory
def proportional(*, fraction: float, factor: float = 1.0) -> Rule:
  """Turns only the fastest channels: p-RoPE.

  The frequencies are those of the whole width; the slowest become 0, so their channels carry
  content alone. `rope(width=...)` spreads all frequencies over fewer channels instead.

  Args:
    fraction: which part of the channels turns, from 0 (none) to 1 (all).
    factor: divides the frequencies, as `linear` does.

  Raises:
    ValueError: a fraction outside 0..1 or a factor below 1.

  Reference: Barbero et al., 2024, https://arxiv.org/abs/2410.06205.

  >>> proportional(fraction=0.5)(width=4, base=1e4)[0].tolist()
  [1.0, 0.0]
  """
  if not 0 <= fraction <= 1:
    raise ValueError(f'fraction={fraction!r} must be from 0 (no channel turns) to 1 (all turn).')
  check_factor(factor)
  return from_frequencies(bind(proportional_frequencies, fraction=fraction, factor=factor))


def given_frequencies(
    width: int, base: Number, *, inv_freq: tuple[float, ...], attention_factor: Number = 1.0
) -> Frequencies:
  """Returns the given frequencies; see `given`.

  Raises:
    ValueError: a number of frequencies that does not fit the width.
  """
  del base
  if len(inv_freq) != width // 2:
    raise ValueError(
        f'given: {len(inv_freq)} frequencies turn {2 * len(inv_freq)} channels, not width={width}: '
        f'pass {width // 2} of them, or rope(width={2 * len(inv_freq)}).'
    )
  return library(*inv_freq).asarray(inv_freq), attention_factor


@factory
def given(*, inv_freq: tuple[float, ...], attention_factor: float = 1.0) -> Rule:
  """Takes the frequencies that the caller lists; the base is not read.

  Args:
    inv_freq: radians per position for each pair of channels.
    attention_factor: multiplies cos and sin.

  Raises:
    ValueError: no frequencies, or an attention factor that is not above 0.

  >>> given(inv_freq=(1, 0.5))(width=4, base=1e4)[0].tolist()
  [1.0, 0.5]
  """
  if not isinstance(inv_freq, tuple) or not inv_freq:
    raise ValueError(f'inv_freq={inv_freq!r} must list one number for each pair of channels.')
  check_positive(attention_factor=attention_factor)
  fixed = bind(given_frequencies, inv_freq=inv_freq, attention_factor=attention_factor)
  return from_frequencies(fixed)
