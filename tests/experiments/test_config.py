# SPDX-License-Identifier: Apache-2.0
"""The config of the experiments, and what the command line makes of it."""

import json
import sys

from absl import flags
import ml_collections
from ml_collections import config_flags
import pytest

from configs import compare as compare_config
from experiments import files
from experiments import train

# ml_collections loads config files in a way that Python has deprecated.
loads_a_config = pytest.mark.filterwarnings('ignore:the load_module:DeprecationWarning')


def parse_flags(monkeypatch, *overrides: str) -> ml_collections.ConfigDict:
  values = flags.FlagValues()
  argv = ['compare', f'--config={compare_config.__file__}', *overrides]
  monkeypatch.setattr(sys, 'argv', argv)  # where ml_collections looks for overrides
  holder = config_flags.DEFINE_config_file('config', flag_values=values)
  values(argv)
  return holder.value


@pytest.mark.parametrize('variant', ['default', 'quick'])
def test_every_default_freezes_and_comes_back_from_json(variant):
  frozen = ml_collections.FrozenConfigDict(compare_config.get_config(variant))
  again = ml_collections.FrozenConfigDict(json.loads(frozen.to_json()))
  assert again.to_json() == frozen.to_json()


@loads_a_config
def test_every_float_survives_whole_numbers_and_exponents(monkeypatch):
  for name in compare_config.get_config().optimizer:
    for given in ('1e6', '500000'):
      config = parse_flags(monkeypatch, f'--config.optimizer.{name}={given}')
      assert config.optimizer[name] == float(given) and isinstance(config.optimizer[name], float)


@loads_a_config
def test_grids_and_lengths_take_whole_numbers(monkeypatch):
  config = parse_flags(
      monkeypatch,
      '--config.grid.learning_rate=(1e-3,2)',
      '--config.grid.weight_decay=1e-2',
      '--config.evaluate.times=(1,2)',
      '--config.model.kv_heads=2',
  )
  frozen = ml_collections.FrozenConfigDict(config)
  assert train.members(frozen).points == (
      {'learning_rate': 1e-3, 'weight_decay': 1e-2},
      {'learning_rate': 2.0, 'weight_decay': 1e-2},
  )
  assert frozen.model.kv_heads == 2 and frozen.model.head_dim is None
  assert files.to_json(json.loads(frozen.to_json()))


@loads_a_config
def test_what_depends_on_the_window_follows_it(monkeypatch):
  config = parse_flags(monkeypatch, '--config.window=128')
  assert 'learned(length=128)' in config.encodings and 't5(max_distance=64)' in config.encodings
  config = parse_flags(monkeypatch, '--config.encodings=rope()', '--config.window=128')
  assert config.encodings == 'rope()'
