# SPDX-License-Identifier: Apache-2.0
"""The figure of a benchmark: time and memory over length, one column of panels for each pass."""

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib import lines as mpl_lines

from experiments import figure
from experiments.bench import ratios

Comparison = dict[str, Any]

_MARKERS = 'osD^vP*X<>'
_LINES = ('-', '--', ':', '-.')
_ROLES = ('kernel', 'peer')
_ROWS = (  # (quantities of which a row of the benchmark has one, name of the axis, unit)
    (('min', 'cycles'), {'min': 'ms, fastest run', 'cycles': 'cycles, estimated'}),
    (('temp_bytes',), {'temp_bytes': 'MB temporary'}),
)
_UNITS = {'min': 1e-3, 'cycles': 1.0, 'temp_bytes': 1e6}


def draw(comparisons: Sequence[Comparison]) -> dict[str, bytes]:
  """Draws attention by length; returns one file for each format, none if nothing was measured."""
  shown = [found for found in comparisons if found['encoding']]
  points = _points(shown)
  if not points:
    return {}
  phases = list(dict.fromkeys(found['phase'] for found in shown))
  encodings = list(dict.fromkeys(found['encoding'] for found in shown))
  sides = list(dict.fromkeys(side for _, _, side, _ in points))
  with matplotlib.rc_context(figure.STYLE | {'axes.titlesize': 10.5}):
    made = mpl_figure.Figure(figsize=(4.6 * len(phases) + 2.6, 7.2), layout='constrained')
    panels = made.subplots(len(_ROWS), len(phases), squeeze=False, sharex=True, sharey='row')
    for axes, phase in zip(panels[0], phases, strict=True):
      axes.set_title(phase)
    for row, (names, labels) in zip(panels, _ROWS, strict=True):
      for axes, phase in zip(row, phases, strict=True):
        _fill(axes, points, phase, names, encodings, sides)
      present = next((name for name in names if any(q == name for *_, q in points)), names[0])
      row[0].set_ylabel(labels[present])
    for axes in panels[-1]:
      axes.set_xlabel('tokens')
    made.legend(handles=_legend(encodings, sides), loc='outside right upper', frameon=False)
    return {kind: figure.render(made, kind) for kind in figure.FORMATS}


def _points(comparisons: Sequence[Comparison]) -> dict[tuple, list[tuple[int, float]]]:
  """Collects the points of every line, by (pass, encoding, side, quantity)."""
  found: dict[tuple, list[tuple[int, float]]] = {}
  for comparison in comparisons:
    for row in comparison['rows']:
      if row['role'] not in _ROLES:
        continue
      quantities = ratios.quantities(row)
      for name, unit in _UNITS.items():
        if quantities.get(name):
          key = (comparison['phase'], comparison['encoding'], row['name'], name)
          found.setdefault(key, []).append((comparison['length'], quantities[name] / unit))
  return found


def _fill(axes, points, phase: str, names, encodings: list[str], sides: list[str]) -> None:
  for (of, encoding, side, name), line in points.items():
    if of == phase and name in names:
      axes.plot(*zip(*sorted(line)), **_look(encodings.index(encoding), sides.index(side)))
  lengths = sorted({length for line in points.values() for length, _ in line})
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.set_xticks(lengths, [str(length) for length in lengths])
  axes.minorticks_off()
  axes.grid(axis='y', color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)


def _look(encoding: int, side: int) -> dict[str, Any]:
  return {
      'color': figure.COLORS[encoding % len(figure.COLORS)],
      'marker': _MARKERS[side % len(_MARKERS)],
      'linestyle': _LINES[side % len(_LINES)],
      'markersize': 5,
      'linewidth': 1.4,
  }


def _legend(encodings: list[str], sides: list[str]) -> list[mpl_lines.Line2D]:
  """One entry for each colour, then one for each marker."""
  colors = [
      mpl_lines.Line2D([], [], color=_look(i, 0)['color'], linewidth=4, label=name)
      for i, name in enumerate(encodings)
  ]
  markers = [
      mpl_lines.Line2D([], [], label=name, **_look(0, i) | {'color': '#333333'})
      for i, name in enumerate(sides)
  ]
  return colors + markers
