# SPDX-License-Identifier: Apache-2.0
"""What the benchmark writes, and how it ends."""

import csv
import io
import json
import pathlib
import subprocess
import sys

from experiments.bench import report

ROOT = pathlib.Path(__file__).parents[2]


def benchmark(*flags):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.benchmark', *flags],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
  )


def test_writes_every_form_of_the_report(tmp_path):
  ended = benchmark(
      f'--workdir={tmp_path}', '--encodings=none()', '--lengths=8', '--heads=2', '--head_dim=4',
      '--kernels=xla', '--rounds=1', '--nopeers',
  )
  assert ended.returncode == 0, ended.stderr
  assert 'none() at 8, forward+backward' in ended.stdout
  content = json.loads((tmp_path / 'results.json').read_text())
  assert content['asked']['encodings'] == {'none()': 'none()'} and content['device']
  assert len(content['comparisons']) == 3
  lines = list(csv.DictReader(io.StringIO((tmp_path / 'table.csv').read_text())))
  assert len(lines) == sum(len(one['rows']) for one in content['comparisons'])
  assert float(lines[0]['min']) > 0 and float(lines[0]['median over jax.nn']) > 0
  assert (tmp_path / 'table.md').read_text().startswith('| encoding | tokens | pass |')
  assert (tmp_path / 'figure.png').read_bytes().startswith(b'\x89PNG')
  assert '<svg' in (tmp_path / 'figure.svg').read_text()
  assert 'rotation at 8' in (tmp_path / 'report.html').read_text()


def test_a_bad_flag_is_told_in_one_line():
  ended = benchmark('--lengths=8,x')
  assert ended.returncode == 2
  assert ended.stderr.startswith('error: --lengths=8,x cannot be: give numbers of tokens above 0')
  assert ended.stderr.count('\n') == 1


def test_the_summary_divides_the_default_by_every_other_side():
  rows = [
      {'name': 'default', 'role': 'kernel', 'seconds': [1.0], 'temp_bytes': 5},
      {'name': 'xla', 'role': 'kernel', 'seconds': [4.0], 'temp_bytes': 100},
      {'name': 'none() by default', 'role': 'none', 'seconds': [0.5], 'temp_bytes': 5},
      {'name': 'none() by xla', 'role': 'none', 'seconds': [0.5], 'temp_bytes': 5},
      {'name': 'torch SDPA', 'role': 'peer', 'reason': 'not installed'},
  ]
  one = {'part': 'attention', 'encoding': 'alibi()', 'length': 8, 'phase': 'forward', 'rows': rows}
  content = report.summary([one])
  assert content.header == (
      'encoding', 'tokens', 'pass', 'memory over xla', 'xla', 'none() by default'
  )
  assert [str(entry) for entry in content.rows[0]] == [
      'alibi()', '8', 'forward', '0.05', '0.25 / 0.25', '2.00 / 2.00'
  ]
