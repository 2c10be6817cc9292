# SPDX-License-Identifier: Apache-2.0
"""A whole comparison: all checks first, then cell after cell, then the report."""

from collections.abc import Iterator
import contextlib
import fcntl
import pathlib

import ml_collections
from rich import console as rich_console

from experiments import cells
from experiments import corpus as corpus_lib
from experiments import errors
from experiments import evaluate
from experiments import output
from experiments import parse
from experiments import progress
from experiments import settings


def run(
    config: ml_collections.FrozenConfigDict, workdir: str, console: rich_console.Console
) -> None:
  """Runs the whole job: all checks, then every cell, then the report."""
  settings.check(config)
  encodings = parse.encodings(config.encodings)
  corpus = corpus_lib.load(config.corpus)
  corpus_lib.check_size(
      corpus, train=config.window + 1, valid=evaluate.stretch_length(config) + 1
  )
  directory = pathlib.Path(workdir)
  jobs = [cells.make(t, e, config, corpus, directory) for t, e in encodings.items()]
  for cell in jobs:
    cells.check(cell, config)
  directory = output.as_directory(workdir, '--workdir')
  with lock(directory), progress.Board(console, cells=len(jobs), steps=config.steps) as board:
    finished = [cells.run(cell, config, corpus, board) for cell in jobs]
  output.write(directory, finished, console)


@contextlib.contextmanager
def lock(directory: pathlib.Path) -> Iterator[None]:
  """Keeps a second job out of the workdir; the system lets go of it when the process dies."""
  with open(directory / 'lock', 'w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise errors.UserError(
          f'another job is running in --workdir={directory}: wait for it, or give another directory'
      ) from None
    yield
