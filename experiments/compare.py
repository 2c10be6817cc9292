# SPDX-License-Identifier: Apache-2.0
"""Trains one small decoder per encoding at one length and evaluates it at longer ones.

  python -m experiments.compare --workdir=DIR
  python -m experiments.compare --workdir=DIR --config=configs/compare.py:quick \\
    --encodings='rope(base=5e5); compose(rope(), alibi()); mine.py:gated(width=32)' \\
    --config.seeds=5 --config.grid.learning_rate='(1e-3,2e-3,4e-3)'

Started again, it goes on where it stopped. `python -m experiments.recompute DIR` computes the
losses again from the saved parameters, `python -m experiments.report DIR...` merges workdirs.
"""

from collections.abc import Sequence
import pathlib
import resource
import sys

from absl import flags
import ml_collections

from experiments import errors
from experiments import job
from experiments import output

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
  job.run(config, _WORKDIR.value, console)
  console.print(_cost(), highlight=False)


def _cost() -> str:
  used = resource.getrusage(resource.RUSAGE_SELF)
  peak = used.ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
  return (
      f'This start took {used.ru_utime + used.ru_stime:.0f} CPU seconds (user + system) and at most'
      f' {peak / 1e9:.2f} GB of memory.'
  )


if __name__ == '__main__':
  errors.run(main, stopped='; the same command goes on from the last checkpoint')
