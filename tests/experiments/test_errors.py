# SPDX-License-Identifier: Apache-2.0
"""How a program ends."""

import sys

import pytest

from experiments import errors


def press_ctrl_c(argv):
  raise KeyboardInterrupt


@pytest.mark.parametrize('stopped', ['', '; start it again'])
def test_ctrl_c_ends_in_one_line_and_status_130(monkeypatch, capsys, stopped):
  monkeypatch.setattr(sys, 'argv', ['program'])
  with pytest.raises(SystemExit) as end:
    errors.run(press_ctrl_c, stopped=stopped)
  assert end.value.code == 130
  assert capsys.readouterr().err == f'error: stopped by the keyboard{stopped}\n'
