# SPDX-License-Identifier: Apache-2.0
"""How a program ends."""

import errno
import pathlib
import subprocess
import sys

import pytest

from experiments import errors

ROOT = pathlib.Path(__file__).parents[2]


def press_ctrl_c(argv):
  raise KeyboardInterrupt


@pytest.mark.parametrize('stopped', ['', '; start it again'])
def test_ctrl_c_ends_in_one_line_and_status_130(monkeypatch, capsys, stopped):
  monkeypatch.setattr(sys, 'argv', ['program'])
  with pytest.raises(SystemExit) as end:
    errors.run(press_ctrl_c, stopped=stopped)
  assert end.value.code == 130
  assert capsys.readouterr().err == f'error: stopped by the keyboard{stopped}\n'


def fill_the_disk(argv):
  raise OSError(errno.ENOSPC, 'No space left on device', 'results.json')


def test_a_full_disk_ends_in_one_line_and_status_1(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['program'])
  with pytest.raises(SystemExit) as end:
    errors.run(fill_the_disk)
  assert end.value.code == 1
  told = capsys.readouterr().err
  assert "No space left on device: 'results.json'" in told and told.count('\n') == 1


def test_mistakes_end_in_one_message_and_status_2(tmp_path):
  (tmp_path / 'own.py').write_text('import nowhere_at_all')
  of_compare = {
      '--config.nofield=3': 'nofield',
      '--config=configs/nowhere.py': 'configs/nowhere.py',
      '--config=configs/compare.py:slow': "no variant 'slow'",
      f'--encodings={tmp_path}/own.py:gated()': 'failed to import',
  }
  compare = ('experiments.compare', f'--workdir={tmp_path}/w')
  commands = {(*compare, flag): told for flag, told in of_compare.items()}
  commands[('experiments.report', str(tmp_path))] = 'no finished cell'
  started = {
      command: subprocess.Popen(
          [sys.executable, '-m', *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
      )
      for command in commands
  }
  for command, process in started.items():
    _, told = process.communicate(timeout=240)
    assert process.returncode == 2, command
    assert told.startswith('error: ') and commands[command] in told
    assert 'Traceback' not in told and told.count('\n') <= 3
  assert not (tmp_path / 'w').exists()
