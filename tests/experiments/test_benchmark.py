# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rotations."""

import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

from experiments import benchmark

ROOT = pathlib.Path(__file__).parents[2]


def test_measures_every_form_of_every_rotation():
  measured = list(benchmark.measure((1, 8, 2, 4), jnp.float32, rounds=1))
  assert {name for name, *_ in measured} == {
      f'{rotation}, {source}'
      for rotation in ('half', 'interleaved')
      for source in ('tables given', 'from positions')
  }
  for _, moved, seconds, copies in measured:
    assert moved > 0 and seconds.shape == copies.shape == (1,)
    assert seconds[0] > 0 and copies[0] > 0


@pytest.mark.parametrize('shape', ['1,8,2', '1,8,x,4'])
def test_a_bad_shape_is_told_in_one_line(shape):
  program = [sys.executable, '-m', 'experiments.benchmark', f'--shape={shape}']
  ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
  assert ended.returncode == 2
  assert ended.stderr.startswith(f'error: --shape={shape}: give four sizes')
  assert ended.stderr.count('\n') == 1
