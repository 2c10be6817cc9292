# SPDX-License-Identifier: Apache-2.0
"""Runs a job of the experiments, and reads what it left."""

import io
import json
import pathlib

from rich import console as rich_console

from experiments import job as job_lib
from experiments import output


def run(config, workdir) -> str:
  """Runs a job in this process; returns what it printed."""
  printed = io.StringIO()
  job_lib.run(config, str(workdir), rich_console.Console(file=printed, width=160))
  return printed.getvalue()


def cells(workdir: pathlib.Path) -> dict[str, dict]:
  """Reads the finished cells of a workdir by what was typed."""
  found = [json.loads(path.read_text()) for path in workdir.glob('cells/*/result.json')]
  return {cell['identity']['encoding']: cell for cell in found}


def directory_of(workdir: pathlib.Path, typed: str) -> pathlib.Path:
  found = output.collect([workdir]).items()
  return next(path for path, cell in found if cell['identity']['encoding'] == typed)


def snapshot(directory: pathlib.Path) -> dict[str, bytes]:
  return {
      str(path): path.read_bytes()
      for path in sorted(directory.rglob('*'))
      if path.is_file() and path.name != 'lock'
  }
