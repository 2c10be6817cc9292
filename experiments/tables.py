# SPDX-License-Identifier: Apache-2.0
"""One table of results in four notations: terminal, CSV, LaTeX and (in `page`) HTML."""

from collections.abc import Iterable
from collections.abc import Sequence
import csv
import dataclasses
import io
from typing import Any

from rich import box
from rich import table as rich_table
from rich import text as rich_text

from experiments.results import Row

_SUPERSCRIPT = str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹')
_LATEX = str.maketrans({
    '\\': r'\textbackslash{}',
    '_': r'\_',
    '#': r'\#',
    '%': r'\%',
    '&': r'\&',
    '$': r'\$',
    '{': r'\{',
    '}': r'\}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '±': r'$\pm$',
    '—': '--',
})


@dataclasses.dataclass(frozen=True)
class Entry:
  """One field of a table: its text, whether it is the best of its column, number of its note."""

  text: str
  best: bool = False
  note: int | None = None

  def __str__(self) -> str:
    return self.text + (str(self.note).translate(_SUPERSCRIPT) if self.note else '')


@dataclasses.dataclass(frozen=True)
class Table:
  """Header, rows, and notes that entries point to, counted from 1. The first column is text."""

  header: tuple[str, ...]
  rows: tuple[tuple[Entry, ...], ...]
  notes: tuple[str, ...] = ()


def by_length(rows: list[Row]) -> Table:
  """Lays out perplexity by length, and the loss of the last quarter of the longest window."""
  lengths = sorted({entry['length'] for row in rows for entry in row['lengths']})
  notes: list[str] = []
  columns = [('encoding', [Entry(row['encoding']) for row in rows])]
  if any(row['settings'] for row in rows):
    columns.append(('best setting', [Entry(_settings(row)) for row in rows]))
  for length in lengths:
    columns.append((f'at {length}', _measured(rows, length, 'perplexity', 2, notes)))
  tail = _measured(rows, lengths[-1], 'last_quarter', 3, notes)
  columns.append((f'last quarter of {lengths[-1]}, nats', tail))
  return make(columns, notes)


def costs(rows: list[Row]) -> Table:
  """Lays out what each encoding costs."""
  return make([
      ('encoding', [Entry(row['encoding']) for row in rows]),
      ('own parameters', [Entry(f'{row["parameters"]["encoding"]:,}') for row in rows]),
      ('all parameters', [Entry(f'{row["parameters"]["total"]:,}') for row in rows]),
      ('ms a step', [Entry(f'{1e3 * row["cost"]["step_seconds"]:.0f}') for row in rows]),
      ('MB temporary', [Entry(f'{row["cost"]["temporary_bytes"] / 1e6:.0f}') for row in rows]),
  ])


def grid(row: Row) -> Table:
  """Lays out perplexity by length for every grid point of one encoding."""
  rows = [row | point for point in row['points']]
  notes: list[str] = []
  columns = [('setting', [Entry(_settings(row)) for row in rows])]
  for length in (entry['length'] for entry in row['lengths']):
    columns.append((f'at {length}', _measured(rows, length, 'perplexity', 2, notes)))
  return make(columns, notes)


def make(columns: list[tuple[str, list[Entry]]], notes: Sequence[str] = ()) -> Table:
  """Makes a table of its columns, each a heading and its entries."""
  header, entries = zip(*columns, strict=True)
  return Table(header, tuple(zip(*entries, strict=True)), tuple(notes))


def _measured(
    rows: list[Row], length: int, quantity: str, digits: int, notes: list[str]
) -> list[Entry]:
  """Returns a column of measurements, the lowest marked; reasons for gaps are added to `notes`."""
  found = [next((e for e in row['lengths'] if e['length'] == length), None) for row in rows]
  means = [entry[quantity]['mean'] for entry in found if entry and 'reason' not in entry]
  lowest = min((mean for mean in means if mean is not None), default=None)
  return [
      _entry(row, entry, quantity, digits, lowest, notes)
      for row, entry in zip(rows, found, strict=True)
  ]


def _entry(row, entry, quantity, digits, lowest, notes) -> Entry:
  if entry is None:
    return Entry('—', note=_note(notes, 'not evaluated at this length'))
  if 'reason' in entry:
    return Entry('—', note=_note(notes, f'{row["encoding"]}: {entry["reason"]}'))
  mean, deviation = entry[quantity]['mean'], entry[quantity]['deviation']
  if mean is None:
    return Entry('diverged')
  text = f'{mean:.{digits}f}' + ('' if deviation is None else f' ± {deviation:.{digits}f}')
  return Entry(text, best=mean == lowest)


def _note(notes: list[str], text: str) -> int:
  if text not in notes:
    notes.append(text)
  return notes.index(text) + 1


def _settings(row: Row) -> str:
  return ', '.join(f'{name}={value:g}' for name, value in row['settings'].items())


def to_terminal(table: Table, title: str) -> rich_table.Table:
  """Draws the table for a terminal, the best of each column in bold green."""
  drawn = rich_table.Table(title=title, box=box.SIMPLE_HEAD, title_justify='left')
  for i, name in enumerate(table.header):
    drawn.add_column(name, justify='right' if i else 'left', overflow='fold', min_width=6)
  for row in table.rows:
    drawn.add_row(*(rich_text.Text(str(e), 'bold green' if e.best else '') for e in row))
  if table.notes:
    drawn.caption = rich_text.Text('\n'.join(f'{i}. {n}' for i, n in enumerate(table.notes, 1)))
    drawn.caption_justify = 'left'
  return drawn


def to_latex(table: Table) -> str:
  """Writes a tabular for the package booktabs, the best of each column in bold."""
  columns = 'l' + 'r' * (len(table.header) - 1)
  lines = [
      '% needs \\usepackage{booktabs}',
      f'\\begin{{tabular}}{{{columns}}}',
      '\\toprule',
      _latex_row(name.translate(_LATEX) for name in table.header),
      '\\midrule',
      *(_latex_row(map(_latex_entry, row)) for row in table.rows),
      '\\bottomrule',
      '\\end{tabular}',
      *(f'% {i}. {note}' for i, note in enumerate(table.notes, 1)),
  ]
  return '\n'.join(lines) + '\n'


def _latex_row(entries: Iterable[str]) -> str:
  return ' & '.join(entries) + r' \\'


def _latex_entry(entry: Entry) -> str:
  text = entry.text.translate(_LATEX)
  if entry.best:
    text = rf'\textbf{{{text}}}'
  return text + (f'$^{{{entry.note}}}$' if entry.note else '')


def to_csv(rows: list[Row]) -> str:
  """Writes every number in full, one line for each encoding and length."""
  lines = [_csv_line(row, entry) for row in rows for entry in row['lengths']]
  buffer = io.StringIO()
  writer = csv.DictWriter(buffer, list(lines[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(lines)
  return buffer.getvalue()


def _csv_line(row: Row, entry: dict[str, Any]) -> dict[str, Any]:
  measured = {
      f'{quantity}_{part}': entry.get(quantity, {}).get(part)
      for quantity in ('loss', 'last_quarter', 'perplexity')
      for part in ('mean', 'deviation')
  }
  return {
      'encoding': row['encoding'],
      'settings': _settings(row),
      'window': row['window'],
      'length': entry['length'],
      'bytes': entry.get('bytes'),
      'seeds': len(row['seeds']),
      **measured,
      'encoding_parameters': row['parameters']['encoding'],
      'parameters': row['parameters']['total'],
      'step_seconds': row['cost']['step_seconds'],
      'temporary_bytes': row['cost']['temporary_bytes'],
      'reason': entry.get('reason'),
  }
