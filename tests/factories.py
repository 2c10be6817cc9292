# SPDX-License-Identifier: Apache-2.0
"""The public functions of pe_jax that make an encoding."""

from collections.abc import Callable
import inspect

import pe_jax


def factories() -> dict[str, Callable]:
  """By name: what says that it returns an Encoding."""
  functions = {name: getattr(pe_jax, name) for name in pe_jax.__all__}
  return {
      name: function
      for name, function in functions.items()
      if inspect.isfunction(function)
      and inspect.signature(function).return_annotation in (pe_jax.Encoding, 'Encoding')
  }
