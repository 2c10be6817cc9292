# SPDX-License-Identifier: Apache-2.0
"""Frequency rules: how fast RoPE turns each pair of channels, and what a longer text does to it.

A `Rule` computes arrays once, from the rotated width and the base, and turns them into frequencies
and one attention factor when it knows the length. Calling it does both:

>>> frequencies, factor = default()(width=4, base=1e4)
>>> frequencies.tolist(), factor
([1.0, 0.01], 1.0)
"""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.base import Arrays
from pe_jax.base import bind
from pe_jax.base import factory
from pe_jax.positions import expand

Array = jax.Array


def inverse_frequencies(width: int, base: float | Array) -> np.ndarray | Array:
  """Computes base ** (-2 i / width) for i = 0 .. width / 2 - 1.

  Args:
    width: number of rotated channels, even.
    base: may be traced, swept and differentiated; must be above 0.

  Returns:
    Radians per position, shape [width / 2], float64 for a number and float32 for a traced base.

  Raises:
    ValueError: an odd width.

  Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864.
  """
  if width % 2 or width < 2:
    raise ValueError(f'width={width} must be even and above 0: RoPE turns channels in pairs.')
  return base ** (-np.arange(0, width, 2) / width)


def as_given(arrays: Arrays, length: Array | None) -> tuple[Array, Array]:
  """Reads frequencies and attention factor that no length changes."""
  del length
  return arrays['inv_freq'], arrays['attention_factor']


@dataclasses.dataclass(frozen=True, repr=False)
class Rule:
  """A frequency rule, compared by value.

  Attributes:
    name: the call that makes the rule.
    arrays: (width, base) -> dict of arrays, computed once. They are the constants of `rope`, so a
      caller may replace, sweep or train any of them.
    at: (arrays, length) -> (inv_freq [..., width / 2], attention_factor). The factor multiplies
      cos and sin alike.
    length_dependent: whether `at` reads the length.
    frequencies: names of the arrays that are frequencies; they get exact phases.
  """

  name: str
  arrays: Callable
  at: Callable = as_given
  length_dependent: bool = False
  frequencies: tuple[str, ...] = ('inv_freq',)

  def __call__(self, width: int, base: float | Array, length: Array | None = None):
    """Returns (inv_freq [..., width / 2], attention_factor) at a length, shape [...]."""
    return self.at(self.arrays(width, base), length)

  def __repr__(self):
    return self.name


# --- Rules ---------------------------------------------------------------------------------------


def _default(width: int, base) -> Arrays:
  return {'inv_freq': inverse_frequencies(width, base), 'attention_factor': 1.0}


@factory
def default() -> Rule:
  """Leaves RoPE's frequencies as they are."""
  return Rule(name='default', arrays=_default)


def _linear(width: int, base, *, factor: float) -> Arrays:
  return {'inv_freq': inverse_frequencies(width, base) / factor, 'attention_factor': 1.0}


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
  _check_factor(factor)
  return Rule(name='linear', arrays=bind(_linear, factor=factor))


def _ntk(width: int, base, *, factor: float) -> Arrays:
  stretch = factor ** (-np.arange(0, width, 2) / max(width - 2, 1))
  return {'inv_freq': inverse_frequencies(width, base) * stretch, 'attention_factor': 1.0}


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
  """
  _check_factor(factor)
  return Rule(name='ntk', arrays=bind(_ntk, factor=factor))


def _stretch_by_length(arrays: Arrays, length, *, factor: float, original_length: float):
  half = arrays['inv_freq'].shape[-1]
  times = factor * jnp.asarray(length, jnp.float32) / original_length - (factor - 1)
  times = jnp.maximum(times, 1)[..., None]
  exponent = jnp.asarray(-np.arange(half) / max(half - 1, 1), jnp.float32)
  stretch = times ** expand(exponent, times.ndim)
  return expand(arrays['inv_freq'], times.ndim) * stretch, arrays['attention_factor']


@factory
def dynamic_ntk(*, factor: float, original_length: float) -> Rule:
  """Raises the base with the length L: base * (factor L / L0 - (factor - 1)) ** (d / (d - 2)).

  Up to the original length L0 nothing changes. The rule reads the length, so keys are cached before
  they are rotated.

  Args:
    factor: how fast the base grows, at least 1. It is not the ratio of lengths.
    original_length: the trained length L0, in tokens.

  Raises:
    ValueError: a factor below 1 or a length that is not above 0.

  Reference: Peng et al., 2023, https://arxiv.org/abs/2309.00071, section 3.3.
  """
  _check_factor(factor)
  if not original_length > 0:
    raise ValueError(f'original_length={original_length!r} must be above 0 tokens.')
  return Rule(
      name='dynamic_ntk',
      arrays=_default,
      at=bind(_stretch_by_length, factor=factor, original_length=original_length),
      length_dependent=True,
  )


def _check_factor(factor: float):
  if not factor >= 1:
    raise ValueError(f'factor={factor!r} must be at least 1: it says how many times longer to read.')
