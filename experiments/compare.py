# SPDX-License-Identifier: Apache-2.0
"""Trains one small decoder per encoding at one length and evaluates it at longer ones.

  python -m experiments.compare --workdir=DIR
  python -m experiments.compare --workdir=DIR --config=configs/compare.py:quick \\
    --encodings='rope(base=5e5); compose(rope(), alibi()); mine.py:gated(width=32)' \\
    --config.seeds=5 --config.grid.learning_rate='(1e-3,2e-3,4e-3)'

Started again, it goes on where it stopped. `python -m experiments.recompute DIR` computes the
losses again from the saved parameters, `python -m experiments.report DIR...` merges workdirs.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import fcntl
import pathlib
import resource
import sys

from absl import flags
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

_DEFAULT = pathlib.Path(__file__).parents[1] / 'configs' / 'compare.py'
_CONFIG = errors.define_config(_DEFAULT)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory for everything.')
_ENCODINGS = flags.DEFINE_string(
    'encodings', None, "Encodings, as in 'rope(base=5e5); alibi(); mine.py:gated()'."
)


def main(argv: Sequence[str]) -> None:
  del argv
  config = errors.load_config(_CONFIG.value)
  if _ENCODINGS.value is not None:
    config = ml_collections.FrozenConfigDict(
        config.to_dict() | {'encodings': _ENCODINGS.value}
    )
  if not _WORKDIR.value:
    raise errors.UserError('no --workdir was given: name a directory, which is made if need be')
  console = output.console()
  run(config, _WORKDIR.value, console)
  console.print(_cost(), highlight=False)


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


def _cost() -> str:
  used = resource.getrusage(resource.RUSAGE_SELF)
  peak = used.ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
  return (
      f'This start took {used.ru_utime + used.ru_stime:.0f} CPU seconds (user + system) and at most'
      f' {peak / 1e9:.2f} GB of memory.'
  )


if __name__ == '__main__':
  errors.run(main)
