# SPDX-License-Identifier: Apache-2.0
"""Merges the finished cells of one or more workdirs into one report.

  python -m experiments.report DIR... --out=report

A cell that two workdirs share is taken once. Where cells differ in more than the encoding, their
names say in what.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from experiments import errors
from experiments import output

_OUT = flags.DEFINE_string('out', 'report', 'Directory for the merged report.')


def main(argv: Sequence[str]) -> None:
  if len(argv) < 2:
    raise errors.UserError(
        'no workdir was given: python -m experiments.report DIR... [--out=report], where each DIR'
        ' is the --workdir of an experiment'
    )
  finished = output.collect([pathlib.Path(name) for name in argv[1:]])
  out = output.as_directory(_OUT.value, '--out')
  output.write(out, list(finished.values()), output.console())


if __name__ == '__main__':
  errors.run(main)
