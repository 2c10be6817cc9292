# SPDX-License-Identifier: Apache-2.0
"""Figures of a report on RoPE: wavelengths, what rules do to them, scores by distance, errors."""

from collections.abc import Callable
from collections.abc import Iterable
import math
from typing import Any

import matplotlib
from matplotlib import figure as mpl_figure
import numpy as np

from experiments import figure
from experiments.rope import findings
from experiments.rope.facts import Facts
from experiments.rope.weights import Comparison

_OWN = {'color': '#000000', 'linewidth': 2.2, 'zorder': 3}
_UNSCALED = {'color': '#888888', 'linewidth': 1.4, 'linestyle': (0, (4, 2))}
_GUIDE = {'color': '#555555', 'linewidth': 0.9, 'linestyle': (0, (2, 3))}
_DASHES = ('-', (0, (4, 2)), (0, (1, 1)))
_A, _B = figure.COLORS[0], figure.COLORS[1]
_PRECISIONS = {  # name, colour, points that it stands above the end of its line
    'bfloat16': ('bfloat16', figure.COLORS[1], 6),
    'bfloat16_frequencies': ('bfloat16 frequencies', figure.COLORS[5], -6),
    'float32': ('float32', figure.COLORS[0], 0),
    'pe_jax': ('pe_jax', figure.COLORS[2], 0),
}


def draw(layers: list[Facts]) -> dict[str, bytes]:
  """Draws four plots for each kind of layer; returns the content of one file for each format."""

  def fill(part, facts: Facts) -> None:
    (a, b), (c, d) = part.subplots(2, 2)
    _wavelengths(a, facts)
    _rules(b, facts)
    _decay(c, facts)
    _phases(d, facts)
    names = dict(zip(*b.get_legend_handles_labels()[::-1], strict=True))
    part.legend(names.values(), names, loc='outside lower center', ncols=2, frameon=False)

  rows = math.ceil(max(len(facts['rules']) for facts in layers) / 2)
  return _draw(layers, [_title(facts) for facts in layers], fill, height=7.4 + 0.24 * rows)


def draw_comparison(
    pairs: list[tuple[Facts, Facts]], weights: Comparison | None
) -> dict[str, bytes]:
  """Draws three plots for each pair of layers, and one of the difference of the weights."""

  def fill(part, pair: tuple[Facts, Facts]) -> None:
    (a, b), (c, d) = part.subplots(2, 2)
    _both_wavelengths(a, *pair)
    _both_ratios(b, *pair)
    _both_decays(c, *pair)
    _differences(d, weights)
    for axes in (a, c):
      axes.legend(frameon=False)

  titles = [x['kind'] if x['kind'] == y['kind'] else f'{x["kind"]}, {y["kind"]}' for x, y in pairs]
  return _draw(pairs, titles, fill, height=7.4)


def _draw(
    parts: list, titles: list[str], fill: Callable[[Any, Any], None], *, height: float
) -> dict[str, bytes]:
  with matplotlib.rc_context(figure.STYLE | {'axes.titlesize': 10.5, 'axes.titlelocation': 'left'}):
    made = mpl_figure.Figure(figsize=(11, height * len(parts)), layout='constrained')
    made.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    for part, title, content in zip(
        made.subfigures(len(parts), 1, squeeze=False)[:, 0], titles, parts, strict=True
    ):
      part.suptitle(title, x=0.012, ha='left', fontsize=12, fontweight='bold')
      fill(part, content)
    return {kind: figure.render(made, kind) for kind in figure.FORMATS}


def _title(facts: Facts) -> str:
  return f'{facts["kind"]}: base {facts["base"]:g}, {facts["rule"]}'


# --- One checkpoint ------------------------------------------------------------------------------


def _wavelengths(axes, facts: Facts) -> None:
  channels = facts['channels']
  axes.set_title('Wavelength of each channel pair')
  past = np.array(channels['stretch']) > findings.TOLERANCE
  if past.any():
    start = int(np.argmax(past))
    axes.axvspan(start - 0.5, len(past) - 0.5, color=_B, alpha=0.1, linewidth=0)
    axes.text(
        0.98, 0.03, 'shaded: past the angles of training', transform=axes.transAxes, ha='right',
        color='#a04000', fontsize=9,
    )
  _plot_wavelengths(axes, channels['unscaled'], label='unscaled', **_UNSCALED)
  _plot_wavelengths(axes, channels['inv_freq'], label='as configured', **_OWN)
  _guides(axes.axhline, facts, axes)
  axes.set_ylabel('tokens a turn')
  axes.legend(frameon=False, loc='upper left')


def _plot_wavelengths(axes, inv_freq: list[float], **look) -> None:
  inv_freq = np.array(inv_freq)
  turning = np.flatnonzero(inv_freq)
  axes.plot(turning, 2 * np.pi / inv_freq[turning], **look)
  axes.set_yscale('log')
  axes.set_xlabel('channel pair')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


def _guides(line: Callable, facts: Facts, axes) -> None:
  """Marks the trained and the wanted length on the axis that counts tokens."""
  places = {'trained': facts['trained_length'], 'wanted': facts['length']}
  if places['trained'] == places['wanted']:
    places = {'trained, wanted': places['trained']}
  for name, place in places.items():
    line(place, **_GUIDE)
    text, below = f'{name} {place:,.0f}', place <= facts['trained_length']
    if line == axes.axhline:
      axes.annotate(text, (1.01, place), xycoords=('axes fraction', 'data'),
                    va='top' if below else 'bottom', color='#555555', fontsize=9)
    else:
      axes.annotate(text, (place, 0.99), xycoords=('data', 'axes fraction'), xytext=(-2, 0),
                    textcoords='offset points', va='top', ha='right', color='#555555', fontsize=9,
                    rotation=90)


def _looks(facts: Facts) -> Iterable[tuple[Facts, dict[str, Any]]]:
  """Pairs each rule that could be computed with its look; the checkpoint's own is on top."""
  count = len(figure.COLORS) - 1  # without black, the checkpoint's own
  for i, rule in enumerate(facts['rules']):
    if 'reason' not in rule:
      other = {
          'color': figure.COLORS[(i - 1) % count],
          'linestyle': _DASHES[(i - 1) // count % len(_DASHES)],
          'linewidth': max(3.4 - 0.24 * i, 1.0),  # of rules that coincide, each shows
      }
      yield rule, other if i else _OWN


def _rules(axes, facts: Facts) -> None:
  axes.set_title('Frequency relative to unscaled')
  unscaled = np.array(facts['channels']['unscaled'])
  for rule, look in _looks(facts):
    ratio = np.array(rule['inv_freq']) / unscaled
    label = f'as configured: {rule["rule"]}' if look is _OWN else rule['rule']
    axes.plot(np.where(ratio > 0, ratio, np.nan), label=label, **look)
  axes.set_yscale('log', base=2)
  axes.yaxis.set_major_formatter(lambda x, _: f'{x:g}' if x >= 1 else f'1/{1 / x:.3g}')
  axes.set_xlabel('channel pair')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


def _decay(axes, facts: Facts) -> None:
  axes.set_title('Expected q·k by distance')
  for rule, look in _looks(facts):
    axes.plot(facts['distances'], rule['decay'], **look)
  _distance_axis(axes, facts)


def _distance_axis(axes, facts: Facts) -> None:
  axes.set_xscale('log')
  axes.axhline(0, color='#bbbbbb', linewidth=0.8)
  _guides(axes.axvline, facts, axes)
  axes.set_xlabel('distance in tokens')
  axes.set_ylabel('relative to unrotated')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


def _phases(axes, facts: Facts) -> None:
  axes.set_title('Largest error of an angle')
  lengths = [entry['length'] for entry in facts['phase_errors']]
  for precision, (name, color, above) in _PRECISIONS.items():
    errors = [max(entry[precision], 1e-9) for entry in facts['phase_errors']]
    axes.plot(lengths, errors, color=color, marker='o', markersize=3.5, linewidth=1.6)
    axes.annotate(
        name, (lengths[-1], errors[-1]), xytext=(6, above), textcoords='offset points',
        va='center', color=color, fontsize=9, annotation_clip=False,
    )
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.set_xlabel('position')
  axes.set_ylabel('radians, at most π')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


# --- Two checkpoints -----------------------------------------------------------------------------


def _both_wavelengths(axes, a: Facts, b: Facts) -> None:
  axes.set_title('Wavelength of each channel pair')
  _plot_wavelengths(axes, a['channels']['inv_freq'], label='a', color=_A, linewidth=2)
  _plot_wavelengths(
      axes, b['channels']['inv_freq'], label='b', color=_B, linewidth=2, linestyle=(0, (4, 2))
  )
  _guides(axes.axhline, b, axes)
  axes.set_ylabel('tokens a turn')


def _both_ratios(axes, a: Facts, b: Facts) -> None:
  axes.set_title('Frequency of b relative to a')
  before, after = (np.array(facts['channels']['inv_freq']) for facts in (a, b))
  if before.shape != after.shape:
    _say(axes, f'{2 * len(before)} channels turn in a and {2 * len(after)} in b')
    return
  turning = (before > 0) & (after > 0)
  axes.plot(np.flatnonzero(turning), after[turning] / before[turning], color=_B, linewidth=2)
  axes.set_xlabel('channel pair')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


def _both_decays(axes, a: Facts, b: Facts) -> None:
  axes.set_title('Expected q·k by distance')
  for name, facts, look in (('a', a, {'color': _A}), ('b', b, {'color': _B, 'linestyle': '--'})):
    axes.plot(facts['distances'], facts['rules'][0]['decay'], label=name, linewidth=2, **look)
  _distance_axis(axes, b)


def _differences(axes, weights: Comparison | None) -> None:
  axes.set_title('Relative difference of each tensor')
  if weights is None:
    _say(axes, 'no weights to compare')
    return
  relative = np.array([d.relative for d in weights.differences])
  if not relative.any():
    _say(axes, f'all {len(relative)} shared tensors are equal')
    return
  changed = relative > 0
  axes.scatter(np.flatnonzero(changed), relative[changed], s=14, color=_B, linewidths=0)
  axes.axhline(math.sqrt(2), **_GUIDE)
  axes.annotate(
      'unrelated', (0.99, math.sqrt(2)), xycoords=('axes fraction', 'data'), xytext=(0, 3),
      textcoords='offset points', ha='right', color='#555555', fontsize=9,
  )
  axes.set_yscale('log')
  axes.set_xlabel('tensor, in the order of the file')
  axes.set_ylabel('|b − a| / max(|a|, |b|)')
  axes.grid(axis='y', color='#e4e4e4', linewidth=0.6)


def _say(axes, text: str) -> None:
  axes.text(0.5, 0.5, text, transform=axes.transAxes, ha='center', color='#555555')
  axes.set_axis_off()
