# SPDX-License-Identifier: Apache-2.0
"""What a frequency rule is, and the frequencies that all of them start from."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import Bound
from pe_jax.base import Arrays

Array = jax.Array
Number = float | Array
Values = np.ndarray | Array
Frequencies = tuple[Values, Number]  # and the attention factor


def inverse_frequencies(width: int, base: Number) -> Values:
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
  at: Callable
  length_dependent: bool = False
  frequencies: tuple[str, ...] = ('inv_freq',)

  def __call__(self, width: int, base: Number, length: Number | None = None):
    """Returns (inv_freq [..., width / 2], attention_factor) at a length, shape [...]."""
    if self.length_dependent and length is None:
      raise ValueError(f'{self} reads the length of the text: pass length, in tokens.')
    return self.at(self.arrays(width, base), length)

  def __repr__(self):
    return self.name


def from_frequencies(frequencies: Callable | Bound) -> Rule:
  """Makes a rule that no length changes from a function (width, base) -> (inv_freq, factor).

  >>> def squared(width, base):
  ...   return inverse_frequencies(width, base) ** 2, 1.0
  >>> from_frequencies(squared)(width=4, base=1e4)[0].tolist()
  [1.0, 0.0001]
  """
  return Rule(
      name=repr(bind(frequencies)),
      arrays=bind(_as_arrays, frequencies=frequencies),
      at=_as_given,
  )


def _as_arrays(width: int, base: Number, *, frequencies: Callable) -> Arrays:
  inv_freq, attention_factor = frequencies(width, base)
  return {'inv_freq': inv_freq, 'attention_factor': attention_factor}


def _as_given(arrays: Arrays, length: Any):
  del length
  return arrays['inv_freq'], arrays['attention_factor']


def library(*numbers: Any):
  """Returns the module to compute with: numpy, in float64, unless one of the numbers is JAX's."""
  return jnp if any(isinstance(number, jax.Array) for number in numbers) else np


def check_factor(factor: float):
  """Raises a ValueError unless the factor is a finite number of at least 1."""
  if not 1 <= factor < np.inf:
    raise ValueError(f'factor={factor!r} must be at least 1: how many times longer to read.')


def check_length(original_length: float):
  """Raises a ValueError unless the length is a number of tokens."""
  if not 1 <= original_length < np.inf:
    raise ValueError(
        f'original_length={original_length!r} must be at least 1: the trained length, in tokens.'
    )
