# SPDX-License-Identifier: Apache-2.0
"""A job with an encoding of the user's own: its mistakes are told, and it survives kill -9."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from experiments import errors
from tests.jobs import cells
from tests.jobs import run

ROOT = pathlib.Path(__file__).parents[2]

MINE = """
import jax.numpy as jnp
import pe_jax

def _penalty(params, q, k, q_positions, k_positions, scale, *, strength):
  if k.shape[-1] == 1:
    raise ValueError('heads of one channel')
  distance = jnp.abs(pe_jax.positions.distance(q_positions, k_positions))
  bias = -strength * jnp.log1p(distance)[..., None, :, :]
  return jnp.broadcast_to(bias, (*bias.shape[:-3], q.shape[-2], *bias.shape[-2:]))

@pe_jax.factory
def penalty(*, strength: float = 1.0) -> pe_jax.Encoding:
  return pe_jax.Encoding(name='penalty', bias=pe_jax.bind(_penalty, strength=strength))
"""


def test_says_where_a_users_hook_fails(make_config, tmp_path):
  (tmp_path / 'mine.py').write_text(MINE)
  config = make_config({'encodings': f'{tmp_path}/mine.py:penalty()', 'model.heads': 16})
  with pytest.raises(errors.UserError, match=r'heads of one channel \(.*mine.py, line 7\)'):
    run(config, tmp_path / 'work')


def test_an_encoding_of_the_users_survives_kill_9(make_config, tmp_path):
  (tmp_path / 'mine.py').write_text(MINE)
  typed = f'{tmp_path}/mine.py:penalty(strength=0.5)'
  config = make_config({'encodings': typed, 'steps': 400, 'seeds': 1, 'evaluate.times': (1.0,)})
  (tmp_path / 'config.py').write_text(
      'from ml_collections import config_dict\nimport json\n'
      f'def get_config():\n  return config_dict.ConfigDict(json.loads({config.to_json()!r}))\n'
  )
  workdir = tmp_path / 'killed'
  process = subprocess.Popen(
      [sys.executable, '-m', 'experiments.compare', f'--workdir={workdir}']
      + [f'--config={tmp_path / "config.py"}'],
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
  )
  deadline = time.monotonic() + 240
  while time.monotonic() < deadline and len(list(workdir.glob('cells/*/0*.npz'))) < 2:
    time.sleep(0.01)
  os.kill(process.pid, signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert not cells(workdir)
  assert 'goes on after step' in run(config, workdir)
  run(config, tmp_path / 'whole')
  assert cells(workdir)[typed]['lengths'] == cells(tmp_path / 'whole')[typed]['lengths']
