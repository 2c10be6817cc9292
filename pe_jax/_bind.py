# SPDX-License-Identifier: Apache-2.0
"""Options of encodings: checked, made equal by value, and shown as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
import functools
import importlib
import inspect
import math
import numbers
import re
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

# --- Functions with frozen options ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True, repr=False)
class Bound:
  """A function and some of its keywords, compared, hashed and pickled by value. See `bind`."""

  fn: Callable
  keywords: tuple[tuple[str, Any], ...]

  def __call__(self, *args, **kwargs):
    return self.fn(*args, **dict(self.keywords), **kwargs)

  def __repr__(self):
    return call(self.fn.__name__.lstrip('_'), self.keywords)

  def __reduce__(self):
    # Functions go by name, as pickle does for plain ones but cannot for jitted ones.
    keywords = tuple((name, _by_name(value)) for name, value in self.keywords)
    return _restore, (_by_name(self.fn), keywords)


class _Name(NamedTuple):
  module: str
  qualname: str


def _by_name(value: Any) -> Any:
  return _Name(value.__module__, value.__qualname__) if hasattr(value, '__qualname__') else value


def _restore(fn: _Name, keywords) -> Bound:
  return Bound(_find(fn), tuple((name, _find(value)) for name, value in keywords))


def _find(value: Any) -> Any:
  if not isinstance(value, _Name):
    return value
  module = importlib.import_module(value.module)
  return functools.reduce(getattr, value.qualname.split('.'), module)


def bind(fn: Callable, /, **keywords) -> Bound:
  """Fixes keywords of `fn`, as `functools.partial` does, but equal arguments give equal results.

  Numbers become floats, or ints where `fn` annotates the parameter so; lists become tuples.

  Args:
    fn: a function defined at module level, or the result of another `bind`.
    **keywords: strings, numbers, None, functions, records, or tuples of those.

  Returns:
    A callable that jit can take as a static argument: it hashes, and equal ones do not retrace.

  Raises:
    ValueError: a keyword that `fn` does not take, or an array. Arrays belong in `init` (trained) or
      `constants` (not trained).

  >>> def scaled(x, *, factor):
  ...   return x * factor
  >>> bind(scaled, factor=2)
  scaled(factor=2.0)
  >>> bind(scaled, factor=2) == bind(scaled, factor=2.0)
  True
  """
  if isinstance(fn, Bound):
    fn, keywords = fn.fn, {**dict(fn.keywords), **keywords}
  parameters = inspect.signature(fn).parameters
  open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  for name in keywords:
    if name not in parameters and not open_ended:
      raise ValueError(f'{fn.__name__} takes no argument {name!r}: it takes {list(parameters)}.')
  frozen = {
      name: freeze(value, name, getattr(parameters.get(name), 'annotation', ''))
      for name, value in keywords.items()
  }
  return Bound(fn, tuple(sorted(frozen.items())))


def freeze(value: Any, name: str, annotation: Any = '') -> Any:
  """Returns `value` as something that is equal by value: see `bind`."""
  if isinstance(value, (bool, np.bool_)):
    return bool(value)
  if isinstance(value, numbers.Real):
    if not re.search(r'\bint\b', str(annotation)):
      return float(value)
    if value != int(value):
      raise ValueError(f'{name}={value!r} must be a whole number.')
    return int(value)
  if isinstance(value, (list, tuple)):
    return tuple(freeze(v, name, annotation) for v in value)
  if isinstance(value, (jax.Array, np.ndarray)):
    raise ValueError(
        f'{name} is an array of shape {value.shape}: a record holds numbers, strings and functions '
        'only. Return arrays from init (trained) or constants (not trained), or pass a tuple.'
    )
  try:
    hash(value)
  except TypeError:
    raise ValueError(f'{name}={value!r} does not hash: pass numbers, strings or tuples.') from None
  return value


# --- Factories -----------------------------------------------------------------------------------


def factory(make: Callable) -> Callable:
  """Names the records that a factory makes after the call: `rope(base=10000.0)`.

  Numbers are always shown, other options where they differ from their default. Numbers are
  normalised as in `bind`, so rope(base=10000) is rope(base=1e4).
  """
  signature = inspect.signature(make)

  @functools.wraps(make)
  def named(*args, **kwargs):
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError as error:
      shown = ', '.join(map(str, signature.parameters.values()))
      raise ValueError(f'{make.__name__}: {error}. It takes ({shown}).') from None
    bound.apply_defaults()
    options = {
        name: freeze(value, name, signature.parameters[name].annotation)
        for name, value in bound.arguments.items()
    }
    shown = tuple(
        (name, value)
        for name, value in options.items()
        if value != signature.parameters[name].default
        or (isinstance(value, (int, float)) and not isinstance(value, bool))
    )
    return dataclasses.replace(make(**options), name=call(make.__name__, shown))

  return named


def call(name: str, keywords: tuple[tuple[str, Any], ...]) -> str:
  """Writes a call as in Python, `rope(base=10000.0)`, leaving out what is None."""
  shown = [f'{key}={_show(value)}' for key, value in keywords if value is not None]
  return f'{name}({", ".join(shown)})'


def _show(value: Any) -> str:
  return value.__name__ if inspect.isfunction(value) else repr(value)


# --- Checks --------------------------------------------------------------------------------------


def check_positive(**numbers_by_name: float):
  """Raises a ValueError that names the first argument that is no finite number above 0."""
  for name, number in numbers_by_name.items():
    is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if not is_number or not 0 < number < math.inf:
      raise ValueError(f'{name}={number!r} must be a finite number above 0.')


def check_sizes(**sizes: int):
  """Raises a ValueError that names the first argument that is no whole number above 0."""
  for name, size in sizes.items():
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
      raise ValueError(f'{name}={size!r} must be a positive integer.')


def check_choice(name: str, value: Any, allowed: Iterable[str]):
  """Raises a ValueError that lists what is allowed, unless the value is one of it."""
  if value not in tuple(allowed):
    raise ValueError(f'{name}={value!r}: choose one of {list(allowed)}.')
