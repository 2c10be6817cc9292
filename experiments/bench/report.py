# SPDX-License-Identifier: Apache-2.0
"""The report of a benchmark: results.json, table.{csv,md}, figure.{png,svg,pdf}, report.html."""

from collections.abc import Callable
from collections.abc import Sequence
import csv
import io
import pathlib
from typing import Any

from rich import console as rich_console

from experiments import files
from experiments import page
from experiments import tables
from experiments.bench import attention
from experiments.bench import figure
from experiments.bench import ratios

Comparison = dict[str, Any]
Row = dict[str, Any]

_READING = (
    'All sides of a table ran in turns in one process. Ratios are of the fastest runs / of the'
    ' medians. `jax.nn` is jax.nn.dot_product_attention with the bias of the same encoding, the'
    ' side `xla`; `none()` is the same kernel without an encoding. Temporary bytes are those of the'
    ' compiled program, arguments and outputs left out.'
)
_COMPILED = (
    "Nothing ran: cycles and bytes are what the TPU's compiler says of each program. A ratio is of"
    ' cycles. Of a conditional, the branch for positions that count by one is taken.'
)
_FASTER = (
    'The choice of `attend` (kernel=None) over each other side of the same comparison, fastest runs'
    ' / medians: below 1, it is faster, or needs less temporary memory.'
)
SUMMARY = "attend's own choice"
_CAPTION = 'Fastest run or estimated cycles, and temporary bytes, by length.'


def title(comparison: Comparison) -> str:
  """Names a comparison."""
  what = comparison['encoding'] or comparison['part']
  return f'{what} at {comparison["length"]}, {comparison["phase"]}'


# --- Tables --------------------------------------------------------------------------------------


def table(comparison: Comparison) -> tables.Table:
  """Lays out one comparison; columns that nothing fills are left out."""
  rows = comparison['rows']
  notes: list[str] = []
  columns = [('side', [_named(row, notes) for row in rows])]
  for heading, text in _COLUMNS.items():
    texts = [text(row) for row in rows]
    if any(texts):
      columns.append((heading, [tables.Entry(text or '—') for text in texts]))
  return tables.make(columns, notes)


def _named(row: Row, notes: list[str]) -> tables.Entry:
  told = row.get('reason') or row.get('note')
  if told and told not in notes:
    notes.append(told)
  return tables.Entry(row['name'], note=notes.index(told) + 1 if told else None)


def _quantity(name: str, unit: float, digits: int) -> Callable[[Row], str | None]:
  def text(row: Row) -> str | None:
    value = ratios.quantities(row).get(name, row.get(name))
    return None if value is None else f'{value / unit:,.{digits}f}'

  return text


def _on_the_chip(name: str) -> Callable[[Row], str | None]:
  """Megabytes that a chip has to hold; of a program that runs here they are those of the host."""
  text = _quantity(name, 1e6, 1)
  return lambda row: text(row) if 'kernels' in row else None


def _over(label: str, names: Sequence[str]) -> Callable[[Row], str | None]:
  return lambda row: _ratio(row['ratios'].get(label, {}), names)


def _ratio(found: dict[str, float], names: Sequence[str]) -> str | None:
  return ' / '.join(f'{found[name]:.2f}' for name in names if name in found) or None


_TIME = ('min', 'median', 'cycles')
_COLUMNS = {
    'min, ms': _quantity('min', 1e-3, 2),
    'median, ms': _quantity('median', 1e-3, 2),
    'cycles': _quantity('cycles', 1, 0),
    'of them in kernels': _quantity('kernel_cycles', 1, 0),
    'optimal, ms': _quantity('optimal_seconds', 1e-3, 3),
    'MB temporary': _quantity('temp_bytes', 1e6, 1),
    'MB arguments': _on_the_chip('argument_bytes'),
    'MB output': _on_the_chip('output_bytes'),
    'bytes / least': _quantity('bytes_over_least', 1, 3),
    'over a copy': _over('copy', _TIME),
    'over pe_jax': _over('pe_jax', _TIME),
    'over jax.nn': _over('jax.nn', _TIME),
    'memory': _over('jax.nn', ('temp_bytes',)),
    'over none()': _over('none()', _TIME),
}


def summary(comparisons: Sequence[Comparison]) -> tables.Table | None:
  """Lays out attend's own choice over each other side, one line a comparison of attention."""
  shown = [found for found in comparisons if found['encoding']]
  if not shown:
    return None
  bare = attention.without(attention.DEFAULT)
  names = dict.fromkeys(
      row['name']
      for found in shown
      for row in found['rows']
      if row['name'] == bare or row['role'] in ('kernel', 'peer')
  )
  names.pop(attention.DEFAULT)
  cells = [_summed(found) for found in shown]
  columns = [
      ('encoding', [tables.Entry(found['encoding']) for found in shown]),
      ('tokens', [tables.Entry(str(found['length'])) for found in shown]),
      ('pass', [tables.Entry(found['phase']) for found in shown]),
  ]
  for name in ('memory over xla', *names):
    texts = [cell.get(name) for cell in cells]
    if any(texts):
      columns.append((name, [tables.Entry(text or '—') for text in texts]))
  return tables.make(columns)


def _summed(comparison: Comparison) -> dict[str, str | None]:
  """Divides attend's own choice by each other side; keys are what it is divided by."""
  by_name = {row['name']: row for row in comparison['rows']}
  own = by_name[attention.DEFAULT]
  found = {name: _ratio(ratios.ratio(own, row), _TIME) for name, row in by_name.items()}
  reference = ratios.ratio(own, by_name[attention.REFERENCE])
  return found | {'memory over xla': _ratio(reference, ('temp_bytes',))}


def to_markdown(content: tables.Table) -> str:
  """Writes a table as a README has it."""
  lines = [content.header, ['---'] * len(content.header)]
  lines += [[entry.text for entry in row] for row in content.rows]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def to_csv(comparisons: Sequence[Comparison]) -> str:
  """Writes every row of every comparison, with all numbers in full."""
  lines = [_csv_line(found, row) for found in comparisons for row in found['rows']]
  buffer = io.StringIO()
  names = dict.fromkeys(name for line in lines for name in line)
  writer = csv.DictWriter(buffer, list(names), lineterminator='\n')
  writer.writeheader()
  writer.writerows(lines)
  return buffer.getvalue()


def _csv_line(comparison: Comparison, row: Row) -> dict[str, Any]:
  titles = {name: comparison[name] for name in ('part', 'encoding', 'length', 'phase')}
  facts = {
      name: value
      for name, value in row.items()
      if name not in ('seconds', 'ratios', 'over', 'reason', 'note', 'kernels')
  }
  summed = {name: value for name, value in ratios.quantities(row).items() if name not in facts}
  divided = {
      f'{name} over {label}': value
      for label, found in row['ratios'].items()
      for name, value in found.items()
  }
  told = {name: row.get(name) for name in ('note', 'reason')}
  return titles | facts | summed | divided | told


# --- Files ---------------------------------------------------------------------------------------


def write(
    directory: pathlib.Path,
    comparisons: Sequence[Comparison],
    about: dict[str, Any],
    console: rich_console.Console,
) -> None:
  """Writes all files of the report, and says where."""
  content = summary(comparisons)
  reading = _COMPILED if 'platform' in about else _READING
  shown = [content] if content else [table(found) for found in comparisons]
  drawn = figure.draw(comparisons)
  files.write_json(directory / 'results.json', {**about, 'comparisons': list(comparisons)})
  files.write(directory / 'table.csv', to_csv(comparisons))
  files.write(directory / 'table.md', '\n'.join(map(to_markdown, shown)))
  for kind, image in drawn.items():
    files.write(directory / f'figure.{kind}', image)
  body = [
      page.figure(drawn['svg'], alt='Cost by length', caption=_CAPTION) if drawn else '',
      page.section(SUMMARY, page.table(content), page.paragraph(_FASTER)) if content else '',
      *(page.section(title(found), page.table(table(found))) for found in comparisons),
      page.section('How to read it', page.paragraph(reading)),
      page.details('how it was run', about),
  ]
  files.write(directory / 'report.html', page.page('What position costs', *body))
  console.print(f'Report: {directory / "report.html"}', soft_wrap=True)
