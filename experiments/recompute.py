# SPDX-License-Identifier: Apache-2.0
"""Computes the losses of finished cells again, from their saved parameters.

  python -m experiments.recompute DIR...

prints stored and new numbers side by side; the exit status is 1 where they differ.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any
import zipfile

from absl import flags
import ml_collections
import numpy as np
from rich import console as rich_console

from experiments import cells
from experiments import corpus
from experiments import errors
from experiments import output
from experiments import parse

_TOLERANCE = flags.DEFINE_float('tolerance', 1e-5, 'Difference that counts as none, nats.')


def main(argv: Sequence[str]) -> None:
  if len(argv) < 2:
    raise errors.UserError(
        'no workdir was given: python -m experiments.recompute DIR..., where each DIR is the'
        ' --workdir of an experiment'
    )
  console = output.console()
  stored = output.collect([pathlib.Path(name) for name in argv[1:]])
  worst = max(difference(directory, cell, console) for directory, cell in stored.items())
  if worst > _TOLERANCE.value:
    console.print(f'differs by up to {worst:.2g} nats, more than --tolerance={_TOLERANCE.value:g}')
    sys.exit(1)


def difference(
    directory: pathlib.Path, stored: dict[str, Any], console: rich_console.Console
) -> float:
  """Prints the losses of one cell, stored and new; returns their largest difference."""
  typed = stored['identity']['encoding']
  config = ml_collections.FrozenConfigDict(stored['config'])
  text = corpus.load(config.corpus)
  if text.sha256 != stored['identity']['corpus']:
    raise errors.UserError(
        f'the text of {directory} has changed: {config.corpus} had the hash'
        f' {stored["identity"]["corpus"][:12]}, now {text.sha256[:12]}; bring the old text back'
    )
  try:
    again = cells.reevaluate(directory, parse.encoding(typed), config, text)
  except (ValueError, zipfile.BadZipFile) as error:
    raise errors.UserError(
        f'the parameters of {directory} cannot be read: {error}; delete the directory and train'
        ' again'
    ) from None
  worst = 0.0
  for old, new in zip(stored['lengths'], again, strict=True):
    if 'reason' in old:
      continue
    gaps = [np.abs(np.subtract(old[key], new[key])).max() for key in ('loss', 'last_quarter')]
    worst = max(worst, *map(float, gaps))
    console.print(
        f'{typed} at {old["length"]}: stored {np.mean(old["loss"]):.6f}, again'
        f' {np.mean(new["loss"]):.6f} nats, largest difference {max(gaps):.2g}'
    )
  return worst


if __name__ == '__main__':
  errors.run(main)
