# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent, and checkpoints that come back as they were."""

import json
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import errors
from experiments import files


@pytest.fixture
def state():
  params = {'w': jnp.arange(6.0).reshape(2, 3), 'b': jnp.ones(3)}
  optimizer = optax.adamw(1e-2)
  _, moments = optimizer.update(params, optimizer.init(params), params)
  return params, moments, jnp.int32(16777217)


@pytest.mark.parametrize('content', [b'', b'{"lengths": [{"le', b'\xff\xfe'])
def test_a_damaged_result_is_told_by_its_path(tmp_path, content):
  path = tmp_path / 'result.json'
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match='result.json is damaged .*: delete its directory'):
    files.read_json(path)


def test_a_write_that_dies_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / 'deep' / 'file'
  files.write(path, 'old')

  def die(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(os, 'fsync', die)
  with pytest.raises(KeyboardInterrupt):
    files.write(path, 'new')
  assert path.read_text() == 'old'


def test_json_is_strict():
  text = files.to_json({'a': [float('nan'), float('inf'), 1.5], 'b': {'c': (1, None)}})
  assert json.loads(text, parse_constant=pytest.fail) == {
      'a': [None, None, 1.5],
      'b': {'c': [1, None]},
  }


def test_a_checkpoint_restores_values_types_and_dtypes(tmp_path, state):
  files.save_checkpoint(tmp_path, 7, state)
  like = jax.eval_shape(lambda: state)
  step, restored = files.load_checkpoint(tmp_path, like)
  assert step == 7
  chex.assert_trees_all_equal(restored, state)
  chex.assert_trees_all_equal_dtypes(restored, state)
  assert isinstance(restored[1][0], optax.ScaleByAdamState)
  assert int(restored[1][0].count) == 1 and np.any(restored[1][0].nu['w'])


def test_numpy_alone_reads_a_checkpoint(tmp_path, state):
  files.save_tree(tmp_path / 'x.npz', state[0])
  with np.load(tmp_path / 'x.npz', allow_pickle=False) as stored:
    assert sorted(stored.files) == ["['b']", "['w']"]


@pytest.mark.parametrize(
    'change',
    [
        lambda tree: {**tree, 'w': tree['w'].astype(jnp.int32)},
        lambda tree: {**tree, 'w': tree['w'][:1]},
        lambda tree: {**tree, 'extra': tree['b']},
        lambda tree: {'w': tree['w']},
    ],
)
def test_nothing_is_cast_padded_or_left_out(tmp_path, state, change):
  files.save_tree(tmp_path / 'x.npz', state[0])
  with pytest.raises(ValueError, match='x.npz'):
    files.load_tree(tmp_path / 'x.npz', change(state[0]))


def test_refuses_what_npz_does_not_keep(tmp_path):
  with pytest.raises(ValueError, match='bfloat16.*float32'):
    files.save_tree(tmp_path / 'x.npz', {'w': jnp.ones(2, jnp.bfloat16)})


def test_half_a_checkpoint_is_never_taken(tmp_path, state):
  for step in (1, 2, 3):
    files.save_checkpoint(tmp_path, step, {'x': jnp.float32(step)})
  like = {'x': jnp.float32(0)}
  whole = (tmp_path / '000000003.npz').read_bytes()
  (tmp_path / '000000004.npz.tmp').write_bytes(whole[:100])
  assert files.load_checkpoint(tmp_path, like) == (3, {'x': 3.0})
  (tmp_path / '000000003.npz').write_bytes(whole[: len(whole) // 2])
  with pytest.warns(UserWarning, match='000000003.npz cannot be read'):
    assert files.load_checkpoint(tmp_path, like) == (2, {'x': 2.0})


def test_the_older_checkpoint_goes_when_the_new_one_is_complete(tmp_path, monkeypatch):
  for step in (1, 2, 3):
    files.save_checkpoint(tmp_path, step, {'x': jnp.float32(step)})
  assert [p.name for p in sorted(tmp_path.iterdir())] == ['000000002.npz', '000000003.npz']

  def die(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(os, 'replace', die)
  with pytest.raises(KeyboardInterrupt):
    files.save_checkpoint(tmp_path, 4, {'x': jnp.float32(4)})
  assert files.load_checkpoint(tmp_path, {'x': jnp.float32(0)}) == (3, {'x': 3.0})


def test_no_checkpoint_is_none(tmp_path):
  assert files.load_checkpoint(tmp_path / 'nowhere', {'x': jnp.float32(0)}) is None
