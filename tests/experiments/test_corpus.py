# SPDX-License-Identifier: Apache-2.0
"""The text: which files, how they are divided, what is told when there is none."""

import pathlib
import sysconfig

import pytest

from experiments import corpus
from experiments import errors


def write(root: pathlib.Path, files: dict[str, str]) -> None:
  for name, content in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_the_standard_library_is_its_own_sources_without_tests(tmp_path, monkeypatch):
  root = tmp_path / 'tests' / 'lib'  # what stands above the library excludes nothing
  write(
      root,
      {
          'b.py': 'b',
          'a.py': 'a',
          'pkg/c.py': 'c',
          'data.txt': 'no',
          'test/test_a.py': 'no',
          'pkg/tests/test_c.py': 'no',
          'site-packages/numpy.py': 'no',
      },
  )
  monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(root))
  found = corpus.load('stdlib')
  assert found.train.tobytes() + found.valid.tobytes() == b'abc'
  assert found.files == 3


def test_the_standard_library_that_runs_this_is_enough_to_train_on():
  found = corpus.load('stdlib')
  assert found.train.size + found.valid.size > 5_000_000
  assert 0.04 < found.valid.size / found.train.size < 0.25
  assert corpus.load('stdlib').sha256 == found.sha256


def test_a_standard_library_without_sources_is_an_error(tmp_path, monkeypatch):
  monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(tmp_path))
  with pytest.raises(errors.UserError, match='--config.corpus='):
    corpus.load('stdlib')


def test_every_tenth_file_is_held_out():
  texts = [f'<{i}>'.encode() for i in range(25)]
  found = corpus.split('s', 'n', texts)
  assert found.valid.tobytes() == b'<9><19>'
  assert found.train.tobytes() == b''.join(texts[:9] + texts[10:19] + texts[20:])


def test_of_few_files_the_last_tenth_of_the_bytes_is_held_out():
  found = corpus.split('s', 'n', [b'0123456789' * 3, b'abcdefghij'])
  assert found.valid.tobytes() == b'ghij'
  assert found.train.tobytes() == b'0123456789' * 3 + b'abcdef'


def test_the_hash_changes_with_any_byte_and_with_the_split():
  def hash_of(*texts: bytes) -> str:
    return corpus.split('s', 'n', list(texts)).sha256

  assert hash_of(b'0123456789') != hash_of(b'0123456780')
  assert hash_of(*[b'a'] * 10) != hash_of(b'a' * 10 + b'a')
  assert hash_of(b'0123456789') == hash_of(b'01234', b'56789')


def test_finds_paths_directories_and_globs_each_file_once(tmp_path):
  write(tmp_path, {'a.txt': 'A', 'more/b.txt': 'B', 'more/deep/c.txt': 'C', 'more/d.md': 'D'})
  read = lambda source: (lambda c: c.train.tobytes() + c.valid.tobytes())(corpus.load(source))
  assert read(f'{tmp_path}/a.txt') == b'A'
  assert read(f'{tmp_path}/more') == b'BDC'
  assert read(f'{tmp_path}/**/*.txt') == b'ABC'
  assert read(f'{tmp_path}/**/*.txt, {tmp_path}/a.txt') == b'ABC'


def test_says_what_to_do_without_files_or_bytes(tmp_path):
  (tmp_path / 'empty.txt').touch()
  with pytest.raises(errors.UserError, match="no file matches .*nope.*'stdlib'"):
    corpus.load(f'{tmp_path}/nope/*.txt')
  with pytest.raises(errors.UserError, match="is empty: 1 files .*'stdlib'"):
    corpus.load(f'{tmp_path}/*.txt')


def test_says_how_many_bytes_are_missing():
  text = corpus.split('s', 'short', [bytes(100)])
  corpus.check_size(text, train=90, valid=10)
  with pytest.raises(errors.UserError, match="'short' is too short: 90 bytes to train on.* 91"):
    corpus.check_size(text, train=91, valid=10)
  with pytest.raises(errors.UserError, match='10 bytes to evaluate on.* 11 .*evaluate.times'):
    corpus.check_size(text, train=90, valid=11)
