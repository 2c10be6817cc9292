# SPDX-License-Identifier: Apache-2.0
"""The figure of a comparison: perplexity by length, one line an encoding."""

import io
import logging
import math
from typing import Any

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np

from experiments.results import Row

FORMATS = ('png', 'svg', 'pdf')

# Okabe and Ito's colours, which colour-blind readers tell apart, less the yellow that fades.
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#000000')
_MARKERS = 'osD^vPX'
_LINES = ('-', '--', ':', '-.')
STYLE = {
    'font.family': 'DejaVu Sans',
    'font.size': 10,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.edgecolor': '#555555',
    'svg.fonttype': 'path',
    'svg.hashsalt': 'pe_jax',  # the same results give the same file
    'pdf.fonttype': 42,
}
_LABEL_WIDTH = 34  # characters of a name beside the plot
_GAP = 0.24  # inches between two names


def draw(rows: list[Row]) -> dict[str, bytes]:
  """Draws the figure; returns the content of one file for each of FORMATS."""
  with matplotlib.rc_context(STYLE):
    height = max(4.2, _GAP * len(rows) + 1.5)
    made = mpl_figure.Figure(figsize=(7.6, height), layout='constrained')
    axes = made.add_subplot()
    drawn = [(row, _look(i)) for i, row in enumerate(rows)]
    drawn = [(row, look, _line(axes, row, look)) for row, look in drawn]
    _axes(axes, rows)
    drawn = [line for line in drawn if line[2] is not None]
    if drawn:
      _label(axes, *zip(*drawn, strict=True))
    return {kind: render(made, kind) for kind in FORMATS}


def _look(index: int) -> dict[str, Any]:
  return {
      'color': COLORS[index % len(COLORS)],
      'marker': _MARKERS[index % len(_MARKERS)],
      'linestyle': _LINES[index // len(COLORS) % len(_LINES)],
      'markersize': 5,
      'linewidth': 1.8,
  }


def _line(axes, row: Row, look: dict[str, Any]) -> tuple[int, float] | None:
  """Draws one encoding and the spread of its seeds; returns where its line ends."""
  measured = [entry for entry in row['lengths'] if 'reason' not in entry]
  measured = [entry for entry in measured if entry['perplexity']['mean'] is not None]
  if not measured:
    return None
  x = np.array([entry['length'] for entry in measured])
  y = np.array([entry['perplexity']['mean'] for entry in measured])
  deviation = np.array([entry['perplexity']['deviation'] or 0.0 for entry in measured])
  low, high = np.maximum(y - deviation, 1.0), y + deviation
  axes.fill_between(x, low, high, color=look['color'], alpha=0.15, linewidth=0)
  axes.plot(x, y, **look)
  return int(x[-1]), float(y[-1])


def _axes(axes, rows: list[Row]) -> None:
  lengths = sorted({entry['length'] for row in rows for entry in row['lengths']})
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.set_xticks(lengths, [str(length) for length in lengths])
  axes.minorticks_off()
  axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
  axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.grid(axis='y', color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.set_xlabel('length of the evaluated window (bytes)')
  axes.set_ylabel('perplexity per byte')
  for window in sorted({row['window'] for row in rows}):
    axes.axvline(window, color='#555555', linestyle=(0, (2, 3)), linewidth=1)
    axes.annotate(
        f'trained at {window}',
        (window, 1),
        xycoords=('data', 'axes fraction'),
        xytext=(4, -2),
        textcoords='offset points',
        va='top',
        color='#555555',
        fontsize=9,
    )


def _label(axes, rows: list[Row], looks: list[dict[str, Any]], ends) -> None:
  """Lists the names right of the plot, each as near to the end of its line as the others let it."""
  low, high = (math.log(y) for y in axes.get_ylim())
  right = max(x for x, _ in ends)
  order = sorted(range(len(rows)), key=lambda i: ends[i][1])
  wanted = [(math.log(ends[i][1]) - low) / (high - low) for i in order]
  heights = _spread(wanted, gap=_GAP / axes.figure.get_figheight())
  for i, height in zip(order, heights, strict=True):
    x, y = ends[i]
    name = _shorten(rows[i]['encoding']) + ('' if x == right else f' (to {x})')
    axes.plot(1.06, height, transform=axes.transAxes, clip_on=False, **looks[i])
    axes.text(1.09, height, name, transform=axes.transAxes, va='center', color=looks[i]['color'])
    if x == right:
      axes.annotate(
          '',
          xy=(x, y),
          xytext=(1.05, height),
          textcoords='axes fraction',
          arrowprops={'arrowstyle': '-', 'color': looks[i]['color'], 'lw': 0.7, 'shrinkB': 4},
      )


def _shorten(name: str) -> str:
  return name if len(name) <= _LABEL_WIDTH else name[: _LABEL_WIDTH - 1] + '…'


def _spread(heights: list[float], *, gap: float) -> list[float]:
  """Moves sorted heights apart until neighbours differ by `gap`; groups stay about their mean."""
  groups = []  # (mean of what was wanted, number of labels)
  for height in heights:
    groups.append((height, 1))
    while len(groups) > 1 and _overlap(*groups[-2:], gap):
      (above, n), (below, m) = groups.pop(), groups.pop()
      groups.append(((above * n + below * m) / (n + m), n + m))
  return [mean + gap * (i - (n - 1) / 2) for mean, n in groups for i in range(n)]


def _overlap(below: tuple[float, int], above: tuple[float, int], gap: float) -> bool:
  return above[0] - below[0] < gap * (above[1] + below[1]) / 2


def render(made: mpl_figure.Figure, kind: str) -> bytes:
  """Returns the content of a figure's file, of a kind in FORMATS."""
  # Embedding fonts in the PDF is reported at the level that absl shows.
  logging.getLogger('fontTools').setLevel(logging.WARNING)
  buffer = io.BytesIO()
  # Without a date, the same results give the same file.
  metadata = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}, 'png': {}}[kind]
  made.savefig(buffer, format=kind, dpi=160, metadata=metadata)
  return buffer.getvalue()
