# SPDX-License-Identifier: Apache-2.0
"""Weights in files: what is compared, and files that cannot be read."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments import errors
from experiments.rope import weights


@pytest.fixture
def make(tmp_path):
  """Returns a function that writes tensors and returns their directory."""

  def write(name, tensors):
    directory = tmp_path / name
    directory.mkdir()
    save_file(tensors, directory / 'model.safetensors')
    return directory

  return write


@pytest.fixture
def sharded(tmp_path):
  """A checkpoint in two shards."""
  files = {name: f'model-{i}.safetensors' for i, name in enumerate('xy')}
  for name, file in files.items():
    save_file({name: np.ones((4, 4), np.float32)}, tmp_path / file)
  index = json.dumps({'metadata': {}, 'weight_map': files})
  (tmp_path / 'model.safetensors.index.json').write_text(index)
  return tmp_path


def compare(a, b):
  return weights.compare(weights.find(a), weights.find(b), lambda values: None)


def test_tensors_without_a_counterpart(make):
  generator = np.random.default_rng(0)
  x, y = generator.normal(size=(2, 20, 20)).astype(np.float32)
  tables = {'rotary_emb.inv_freq': np.ones(4, np.float32)}
  base = make('base', {'x': x, 'y': y, 'n': np.ones(3, np.float32)})
  assert compare(base, make('a', {'x': x, 'y': y, 'n': np.ones(3, np.float32)} | tables)
                 ).verdict == 'same weights'
  longer = compare(base, make('b', {'x': x, 'y': y, 'n': np.ones(4, np.float32)}))
  assert (longer.verdict, longer.other_shapes) == ('fine-tuned', ['n'])
  other = compare(base, make('c', {'x': x[:9], 'z': y}))
  assert (other.verdict, other.only_a, other.only_b) == ('different model', ['n', 'y'], ['z'])


def test_values_that_are_not_finite_are_counted(make):
  x = np.array([1, 2, np.nan, 4], np.float32)
  y = np.array([1, 2, 3, np.inf], np.float32)
  a, b = make('a', {'x': x}), make('b', {'x': y})
  [difference] = compare(a, b).differences
  assert (difference.not_finite, difference.relative, difference.equal) == (2, 0.0, False)
  assert compare(a, a).verdict == 'same weights'
  assert compare(a, b).verdict == 'fine-tuned'


def test_scalars_and_empty_tensors(make):
  odd = {'scalar': np.array(3.0, np.float32), 'empty': np.zeros((0, 4), np.float32)}
  a, b = make('a', odd), make('b', odd | {'scalar': np.array(-3.0, np.float32)})
  assert compare(a, a).verdict == 'same weights'
  assert compare(a, b).verdict == 'different model'


# --- Files that cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ('name', 'damage'),
    [
        ('model-1.safetensors', lambda content: content[:-5]),  # cut in its data
        ('model-1.safetensors', lambda content: content[:20]),  # cut in its header
        ('model-1.safetensors', lambda content: b''),
        ('model-1.safetensors', lambda content: content[:8] + b'xx' + content[10:]),
        ('model-1.safetensors', lambda content: content + b'more'),
        ('model-1.safetensors', lambda content: content.replace(b'"y"', b'"z"')),
        ('model.safetensors.index.json', lambda content: content[:40]),
        ('model.safetensors.index.json', lambda content: b'[]'),
        ('model.safetensors.index.json', lambda content: b'{"weight_map": [1]}'),
    ],
)
def test_a_damaged_file_is_named(sharded, name, damage):
  assert set(weights.find(sharded)) == {'x', 'y'}
  (sharded / name).write_bytes(damage((sharded / name).read_bytes()))
  with pytest.raises(errors.UserError, match=name):
    weights.find(sharded)


def test_a_missing_shard_is_named(sharded):
  (sharded / 'model-1.safetensors').unlink()
  with pytest.raises(errors.UserError, match='model-1.safetensors'):
    weights.find(sharded)


def test_a_tensor_in_two_files_is_named(sharded):
  (sharded / 'model.safetensors.index.json').unlink()
  assert set(weights.find(sharded)) == {'x', 'y'}
  save_file({'x': np.ones(3, np.float32)}, sharded / 'model-2.safetensors')
  with pytest.raises(errors.UserError, match="model-2.safetensors holds 'x'"):
    weights.find(sharded)


def test_a_dtype_that_is_not_read_is_named(make):
  directory = make('a', {'x': np.ones(4, np.float32)})
  path = directory / 'model.safetensors'
  path.write_bytes(path.read_bytes().replace(b'"F32"', b'"C64"').replace(b'[4]', b'[2]'))
  with pytest.raises(errors.UserError, match=r"model.safetensors: 'x' has dtype C64"):
    weights.find(directory)
