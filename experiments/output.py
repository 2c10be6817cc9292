# SPDX-License-Identifier: Apache-2.0
"""The report of finished cells: results.json, table.{csv,tex}, figure.*, report.html."""

import pathlib
from typing import Any

from rich import console as rich_console

from experiments import errors
from experiments import figure
from experiments import files
from experiments import page
from experiments import results
from experiments import tables

_TITLE = 'Positional encodings by length'
_CAPTION = (
    'Mean over seeds; the band is one standard deviation. Both axes are logarithmic. Right of the'
    ' dotted line are lengths that no model has seen in training.'
)
_READING = {
    'Perplexity by length': (
        'Perplexity is exp of the loss in nats per byte: mean ± standard deviation over seeds.'
        ' Windows do not overlap, and every length predicts the same held-out bytes. A window'
        ' starts without context; in its last quarter every byte has a long one. The lowest number'
        ' of a column is marked. Of a grid, the point with the lowest loss at the shortest length'
        ' is shown.'
    ),
    'Cost': (
        'Own parameters are those that the encoding adds to the model. A step trains all seeds and'
        ' grid points at once; its time is the median over chunks of steps. Compare times only of'
        ' runs on an idle machine. Temporary memory is that of the compiled training program.'
    ),
}


def console() -> rich_console.Console:
  """Where mains print; a log file has no width, so its tables are not folded."""
  shown = rich_console.Console(highlight=False)
  return shown if shown.is_terminal else rich_console.Console(highlight=False, width=160)


def as_directory(name: str, flag: str) -> pathlib.Path:
  """Makes a directory, or says why it cannot be one."""
  path = pathlib.Path(name).expanduser()
  try:
    path.mkdir(parents=True, exist_ok=True)
  except (FileExistsError, NotADirectoryError):
    raise errors.UserError(
        f'{flag}={name} is a file or lies in one: give a directory; it is made if it does not exist'
    ) from None
  except OSError as error:
    raise errors.UserError(f'{flag}={name} cannot be made: {error}; give another place') from None
  return path


def collect(workdirs: list[pathlib.Path]) -> dict[pathlib.Path, dict[str, Any]]:
  """Reads the results of the finished cells of workdirs, each once, by the cell's directory."""
  found = {}
  for workdir in workdirs:
    paths = sorted(workdir.glob('cells/*/result.json'))
    if not paths:
      raise errors.UserError(
          f'{workdir} has no finished cell (cells/*/result.json): give the --workdir of an'
          ' experiment that has finished at least one encoding'
      )
    found |= {path.parent.name: path for path in paths}
  return {path.parent: files.read_json(path) for path in found.values()}


def write(
    directory: pathlib.Path, cells: list[dict[str, Any]], console: rich_console.Console
) -> None:
  """Writes all forms of the report and prints its tables."""
  rows = results.summarize(cells)
  shared = results.shared(cells)
  shown = {
      'Perplexity by length': tables.by_length(rows),
      'Cost': tables.costs(rows),
  }
  drawn = figure.draw(rows)
  files.write_json(directory / 'results.json', {**shared, 'rows': rows})
  files.write(directory / 'table.csv', tables.to_csv(rows))
  files.write(directory / 'table.tex', '\n'.join(map(tables.to_latex, shown.values())))
  for kind, content in drawn.items():
    files.write(directory / f'figure.{kind}', content)
  files.write(directory / 'report.html', _html(rows, shared, shown, drawn['svg']))
  for title, table in shown.items():
    console.print(tables.to_terminal(table, title))
  console.print(f'Report: {directory / "report.html"}', soft_wrap=True, highlight=False)


def _html(rows, shared, shown, svg: bytes) -> str:
  configs = shared['configs']
  return page.page(
      _TITLE,
      page.paragraph(_lead(rows, configs), 'lead'),
      page.figure(svg, alt='Perplexity by length, one line an encoding', caption=_CAPTION),
      *(
          page.section(title, page.table(table), page.paragraph(_READING[title]))
          for title, table in shown.items()
      ),
      *_grids(rows),
      page.section('Text', *map(page.facts, shared['corpora'])),
      page.section(
          'How it was run',
          *(page.facts({'device': device}) for device in shared['devices']),
          *map(page.facts, shared['versions']),
          *(page.details('config', config) for config in configs),
      ),
  )


def _lead(rows: list[results.Row], configs: list[dict[str, Any]]) -> str:
  trained = '; '.join(
      f'windows of {config["window"]} bytes, {config["steps"]} steps of {config["batch"]} windows,'
      f' {config["seeds"]} seeds'
      for config in configs
  )
  return (
      f'{len(rows)} encodings, each in a small byte-level decoder trained from scratch ({trained}),'
      ' read windows as long as those they were trained on, and longer ones.'
  )


def _grids(rows: list[results.Row]) -> list[str]:
  """A table of all grid points for each encoding that has several."""
  return [
      page.section(f'Grid of {row["encoding"]}', page.table(tables.grid(row)))
      for row in rows
      if row['points']
  ]

