# SPDX-License-Identifier: Apache-2.0
"""The report on one checkpoint's RoPE, and on what two differ in: terminal, JSON, figure, HTML."""

import dataclasses
import pathlib
from typing import Any

from rich import console as rich_console
from rich import text as rich_text

from experiments import files
from experiments import page
from experiments import tables
from experiments.rope import figure as rope_figure
from experiments.rope import tables as rope_tables
from experiments.rope.checkpoints import Setting
from experiments.rope.facts import Facts
from experiments.rope.weights import Comparison

_CAPTION = (
    'Wavelengths against the trained and the wanted length; what each rule does to the frequencies;'
    ' the expected q·k by distance, each value a mean over distances from 0.8 to 1.25 times it; the'
    ' largest error of an angle at the last 128 positions before each length.'
)
_COMPARED = (
    'Wavelengths of both against the trained and the wanted length of b; the frequencies of b over'
    ' those of a; the expected q·k by distance; the difference of each tensor, relative to the'
    ' larger norm, where 1.41 means unrelated.'
)


def write(
    directory: pathlib.Path, name: str, layers: list[Facts], console: rich_console.Console
) -> None:
  """Writes the report on one checkpoint and prints its tables."""
  drawn = rope_figure.draw(layers)
  body = [
      page.paragraph(f'{name}: {_lead(layers)}', 'lead'),
      page.figure(drawn['svg'], alt='Wavelengths, rules, q·k and errors', caption=_CAPTION),
      *(_section(facts) for facts in layers),
  ]
  html = page.page('RoPE, as configured', *body)
  _write(directory, {'config': name, 'layers': layers}, drawn, html)
  for facts in layers:
    title = f'{facts["kind"]}, {facts["layers"]} layers: {facts["encoding"]}'
    console.print(rich_text.Text(f'\n{title}', 'bold'))
    console.print(rich_text.Text(_lengths(facts)))
    for finding in facts['findings']:
      console.print(_told(finding))
    console.print(tables.to_terminal(rope_tables.bands(facts), 'Channels'))
    console.print(tables.to_terminal(rope_tables.rules(facts), 'Rules'))
    console.print(tables.to_terminal(rope_tables.phases(facts), 'Phases'))
  told = '; '.join(f'{name}: {text}' for name, text in rope_tables.GLOSSARY.items())
  console.print(rich_text.Text(f'{told}.', 'dim'))
  _say_where(directory, console)


def _lead(layers: list[Facts]) -> str:
  warnings = sum(f['level'] == 'warning' for facts in layers for f in facts['findings'])
  told = f'{warnings} warning{"s" * (warnings != 1)}' if warnings else 'nothing out of calibration'
  return f'{told}. ' + ' '.join(f'{facts["kind"]}: {_lengths(facts)}' for facts in layers)


def _lengths(facts: Facts) -> str:
  return (
      f'trained at {facts["trained_length"]:,.0f} tokens (from {facts["trained_length_from"]}), to'
      f' be read at {facts["length"]:,}.'
  )


def _told(finding: dict[str, str]) -> rich_text.Text:
  style = 'bold yellow' if finding['level'] == 'warning' else 'cyan'
  line = rich_text.Text(f'{finding["level"]}: {finding["setting"]}: ', style)
  return line.append(finding['text'], '')


def _section(facts: Facts) -> str:
  return page.section(
      f'{facts["kind"]}, {facts["layers"]} layers',
      *_findings(facts['findings']),
      page.facts({
          'encoding': facts['encoding'],
          'channels': f'{facts["width"]} of {facts["head_dim"]} turn',
          'trained length': f'{facts["trained_length"]:,.0f}, from {facts["trained_length_from"]}',
          'wanted length': f'{facts["length"]:,}',
          'attention factor': f'{facts["attention_factor"]:.6g}',
      }),
      page.table(rope_tables.bands(facts)),
      page.paragraph('Neighbouring pairs of channels that share a fate are one line.'),
      page.folded('every channel pair', page.table(rope_tables.channels(facts))),
      '<h3>What each rule would give</h3>',
      page.table(rope_tables.rules(facts)),
      page.facts(rope_tables.GLOSSARY),
      page.paragraph('Rules that were not typed are calibrated by the two lengths alone.'),
      '<h3>Errors of the angles</h3>',
      page.table(rope_tables.phases(facts)),
      page.paragraph('Modulo whole turns, so at most π, where nothing is left of the position.'),
  )


def _findings(found: list[dict[str, str]]) -> list[str]:
  return [page.paragraph(f'{f["level"]}: {f["setting"]}: {f["text"]}', f['level']) for f in found]


# --- Two checkpoints -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
  """What two checkpoints differ in.

  Attributes:
    names: what was given for a and b.
    settings: keys of the configs that differ.
    layers: numbers of the kinds of layers that stand at the same place in a and b.
    weights: their comparison; None where one has no weights.
    verdicts: sentences, the one on configs first.
    findings: what to act on.
  """

  names: tuple[str, str]
  settings: list[Setting]
  layers: list[tuple[Facts, Facts]]
  weights: Comparison | None
  verdicts: list[str]
  findings: list[dict[str, str]]


def write_pair(directory: pathlib.Path, pair: Pair, console: rich_console.Console) -> None:
  """Writes the report on two checkpoints and prints its tables."""
  drawn = rope_figure.draw_comparison(pair.layers, pair.weights)
  _write(directory, dataclasses.asdict(pair), drawn, _page(pair, drawn['svg']))
  for line in pair.verdicts:
    console.print(rich_text.Text(line, 'bold'))
  for finding in pair.findings:
    console.print(_told(finding))
  if pair.settings:
    console.print(tables.to_terminal(rope_tables.settings(pair.settings), 'Settings that differ'))
  for a, b in _comparable(pair):
    console.print(tables.to_terminal(rope_tables.effect(a, b), f'Wavelengths, {b["kind"]}'))
  _say_where(directory, console)


def _comparable(pair: Pair) -> list[tuple[Facts, Facts]]:
  return [(a, b) for a, b in pair.layers if a['width'] == b['width']]


def _page(pair: Pair, svg: bytes) -> str:
  a, b = pair.names
  return page.page(
      'Two checkpoints',
      page.facts({'a': a, 'b': b}),
      *(page.paragraph(line, 'lead') for line in pair.verdicts),
      *_findings(pair.findings),
      page.figure(svg, alt='Wavelengths, frequencies, q·k and weights', caption=_COMPARED),
      *(
          page.section(f'Wavelengths, {y["kind"]}', page.table(rope_tables.effect(x, y)))
          for x, y in _comparable(pair)
      ),
      page.section('Settings that differ', page.table(rope_tables.settings(pair.settings)))
      if pair.settings
      else '',
      page.details('every tensor', dataclasses.asdict(pair.weights)) if pair.weights else '',
  )


# --- Files ---------------------------------------------------------------------------------------


def _write(directory: pathlib.Path, content: dict[str, Any], drawn, html: str) -> None:
  files.write_json(directory / 'report.json', content)
  for kind, image in drawn.items():
    files.write(directory / f'figure.{kind}', image)
  files.write(directory / 'report.html', html)


def _say_where(directory: pathlib.Path, console: rich_console.Console) -> None:
  console.print(f'Report: {directory / "report.html"}', soft_wrap=True, highlight=False)
