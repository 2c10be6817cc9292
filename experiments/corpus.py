# SPDX-License-Identifier: Apache-2.0
"""The text that is trained on and evaluated: bytes of files, split by file.

Without files of your own it is the source of the Python standard library that runs the experiment,
which is present wherever Python is. Nothing is downloaded.
"""

import dataclasses
import glob
import hashlib
import pathlib
import platform
import sysconfig

import numpy as np

from experiments import errors

STDLIB = 'stdlib'
_NOT_STDLIB = frozenset(
    {'test', 'tests', 'idle_test', '__pycache__', 'site-packages', 'dist-packages'}
)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Two byte strings without a common file, and what identifies them.

  Attributes:
    source: as it was given.
    name: where the text comes from, for the reader of a report.
    train: bytes to train on, uint8, shape [n].
    valid: bytes to evaluate on, uint8, shape [m].
    files: number of files.
    split: how the two parts were divided.
    sha256: hash over both parts.
  """

  source: str
  name: str
  train: np.ndarray
  valid: np.ndarray
  files: int
  split: str
  sha256: str

  def describe(self) -> dict[str, int | str]:
    """Returns what a report says of the corpus."""
    return {
        'source': self.source,
        'text': self.name,
        'files': self.files,
        'train_bytes': int(self.train.size),
        'valid_bytes': int(self.valid.size),
        'split': self.split,
        'sha256': self.sha256,
    }


def load(source: str) -> Corpus:
  """Reads the corpus that `source` names.

  Args:
    source: 'stdlib', or paths, directories and globs ('notes/**/*.txt') separated by commas.
  """
  if source == STDLIB:
    root = pathlib.Path(sysconfig.get_path('stdlib'))
    paths = [
        path
        for path in root.rglob('*.py')
        if _NOT_STDLIB.isdisjoint(path.relative_to(root).parts)
    ]
    if not paths:
      raise errors.UserError(
          f'the corpus {STDLIB!r} has no .py files under {root}: this Python comes without its'
          ' source; pass text of your own, as in --config.corpus="/my/books/**/*.txt"'
      )
    name = f'standard library of Python {platform.python_version()} (.py files, no tests)'
    paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return split(source, name, _read(paths))
  return split(source, source, _read(_find(source)))


def split(source: str, name: str, texts: list[bytes]) -> Corpus:
  """Divides texts 90 to 10: every tenth one, or the last tenth of the bytes of fewer than ten."""
  if len(texts) >= 10:
    how = 'every tenth file is held out'
    train = b''.join(text for i, text in enumerate(texts) if i % 10 != 9)
    valid = b''.join(texts[9::10])
  else:
    how = 'the last tenth of the bytes is held out (fewer than ten files)'
    text = b''.join(texts)
    train, valid = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
  digest = hashlib.sha256(train)
  digest.update(len(train).to_bytes(8, 'little'))
  digest.update(valid)
  return Corpus(
      source=source,
      name=name,
      train=np.frombuffer(train, np.uint8),
      valid=np.frombuffer(valid, np.uint8),
      files=len(texts),
      split=how,
      sha256=digest.hexdigest(),
  )


def check_size(corpus: Corpus, *, train: int, valid: int) -> None:
  """Raises where a part has fewer bytes than one window of training or of evaluation needs."""
  for part, have, need in (
      ('train', corpus.train.size, train),
      ('evaluate', corpus.valid.size, valid),
  ):
    if have < need:
      raise errors.UserError(
          f'the corpus {corpus.name!r} is too short: {have} bytes to {part} on, where one window'
          f' takes {need} ({corpus.split}); add text, or lower --config.window or'
          ' --config.evaluate.times'
      )


def _read(paths: list[pathlib.Path]) -> list[bytes]:
  try:
    return [path.read_bytes() for path in paths]
  except OSError as error:
    raise errors.UserError(
        f'a file of the corpus cannot be read: {error}; change its permissions or leave it out of'
        ' --config.corpus'
    ) from error


def _find(source: str) -> list[pathlib.Path]:
  """Lists the files that paths, directories and globs name, sorted, each once."""
  found = set()
  for pattern in filter(None, (part.strip() for part in source.split(','))):
    path = pathlib.Path(pattern).expanduser()
    matches = path.rglob('*') if path.is_dir() else map(
        pathlib.Path, glob.glob(str(path), recursive=True)
    )
    files = {match.resolve() for match in matches if match.is_file()}
    if not files:
      raise errors.UserError(
          f'no file matches {pattern!r} in --config.corpus: give a path, a directory or a glob'
          f' ("books/**/*.txt"), several separated by commas, or {STDLIB!r} for the source of the'
          ' Python standard library'
      )
    found |= files
  if not any(path.stat().st_size for path in found):
    raise errors.UserError(
        f'the corpus {source!r} is empty: {len(found)} files without a byte; give files with text,'
        f' or {STDLIB!r} for the source of the Python standard library'
    )
  return sorted(found)
