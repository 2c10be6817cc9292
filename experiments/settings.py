# SPDX-License-Identifier: Apache-2.0
"""Guards for the settings of an experiment: what was given, what is allowed, what to do."""

import math
from typing import Any

import ml_collections

from experiments import errors

_MOST_SEED = 2**31  # seeds are int32
_SIZES = ('window', 'batch', 'steps', 'chunk', 'seeds', 'evaluate.bytes', 'evaluate.batch_tokens')


def check(config: ml_collections.FrozenConfigDict) -> None:
  """Raises a UserError for a size, a number or a length that cannot be."""
  for name in _SIZES:
    if _get(config, name) < 1:
      _refuse(name, _get(config, name), 'a whole number of at least 1')
  if not 0 <= config.seed <= _MOST_SEED - config.seeds:
    _refuse('seed', config.seed, f'a whole number from 0 to {_MOST_SEED - config.seeds}')
  for name, value in config.model.items():
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
      _refuse(f'model.{name}', value, 'a whole number of at least 1')
  for name, value in config.optimizer.items():
    _check_hyper('optimizer', name, value)
  for name, values in config.grid.items():
    for value in values:
      _check_hyper('grid', name, value)
    if len(set(values)) < len(values):
      _refuse(f'grid.{name}', values, 'every value once')
  _check_lengths(config)


def _check_lengths(config: ml_collections.FrozenConfigDict) -> None:
  times = config.evaluate.times
  if not times:
    _refuse('evaluate.times', times, 'at least one length, in windows: (1, 2, 4, 8)')
  for one in times:
    _check_number('evaluate.times', one)
    length = one * config.window
    if length != round(length):
      _refuse('evaluate.times', one, f'whole bytes: times a window of {config.window} is {length}')
    if one < 1:
      trained = f'{length:g} is below the window of {config.window} that models are trained at'
      _refuse('evaluate.times', one, f'at least 1: {trained}')
  if list(times) != sorted(set(times)):
    _refuse('evaluate.times', times, 'increasing, every length once')


def _check_hyper(group: str, name: str, value: Any) -> None:
  _check_number(f'{group}.{name}', value)
  if name in ('b1', 'b2') and value >= 1:
    _refuse(f'{group}.{name}', value, 'the decay of a mean, below 1')
  if name in ('warmup', 'final') and value > 1:
    _refuse(f'{group}.{name}', value, 'a part, at most 1')


def _check_number(name: str, value: Any) -> None:
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not number or not math.isfinite(value) or value < 0:
    _refuse(name, value, 'a finite number of at least 0')


def _refuse(name: str, value: Any, allowed: str) -> None:
  raise errors.UserError(f'--config.{name}={value} cannot be: give {allowed}')


def _get(config: ml_collections.FrozenConfigDict, path: str) -> Any:
  for name in path.split('.'):
    config = config[name]
  return config
