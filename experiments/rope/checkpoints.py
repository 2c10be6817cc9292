# SPDX-License-Identifier: Apache-2.0
"""The configs of checkpoints, and where two differ."""

from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from experiments import errors
from pe_jax import hf

Config = dict[str, Any]


def read_config(name: str, flag: str) -> Config:
  """Reads a config.json, given it or its directory; of a model of several parts, that of its text.

  Raises:
    UserError: there is none, or it is no JSON object.
  """
  try:
    config = hf.load(pathlib.Path(name).expanduser())
  except ValueError as error:
    raise errors.UserError(f'{flag}={name}: {error}') from None
  text = config.get('text_config')
  return text if isinstance(text, dict) else config


# How the file came about and how it is run; the model is the same.
_BOOKKEEPING = ('_name_or_path', 'transformers_version', 'torch_dtype', 'dtype', 'use_cache')


@dataclasses.dataclass(frozen=True)
class Setting:
  """A key whose values differ; `about` is 'rope', 'model' or 'bookkeeping'."""

  key: str
  about: str
  a: Any
  b: Any


def settings_that_differ(a: Config, b: Config) -> list[Setting]:
  """Compares two configs key by key, tables entry by entry; None for a key that is not there."""
  found = []
  for key in sorted(a.keys() | b.keys()):
    about = 'rope' if key in hf.POSITION_KEYS else 'model'
    about = 'bookkeeping' if key in _BOOKKEEPING else about
    differing = _leaves(key, a.get(key), b.get(key))
    found += [Setting(path, about, *values) for path, values in differing]
  return found


def _leaves(path: str, a: Any, b: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
  if isinstance(a, dict | None) and isinstance(b, dict | None):
    a, b = a or {}, b or {}
    for key in sorted(a.keys() | b.keys()):
      yield from _leaves(f'{path}.{key}', a.get(key), b.get(key))
  elif a != b:
    yield path, (a, b)
