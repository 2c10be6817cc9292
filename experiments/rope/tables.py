# SPDX-License-Identifier: Apache-2.0
"""The tables of a report on RoPE."""

from collections.abc import Iterable
import itertools
import math
from typing import Any

from experiments import tables
from experiments.rope import findings
from experiments.rope import wavelengths
from experiments.rope.checkpoints import Setting
from experiments.rope.facts import Facts
from experiments.tables import Entry
from experiments.tables import Table

GLOSSARY = {
    'factor': 'multiplies cos and sin',
    'slowest': 'the longest wavelength, in tokens',
    'complete': 'channel pairs that complete a turn within the wanted length',
    'past': 'pairs that meet, at the wanted length, angles that unscaled training did not show',
    'reaches': 'tokens up to which no pair does',
    'q·k': 'expected at that distance, relative to an unrotated one, for q and k that agree equally'
           ' in all channels',
}


def bands(facts: Facts) -> Table:
  """Lays out neighbouring channel pairs that share a fate, one line a band."""
  channels = facts['channels']
  pairs = range(len(channels['inv_freq']))
  ratios = [w / w0 for w, w0 in zip(channels['inv_freq'], channels['unscaled'], strict=True)]
  groups = itertools.groupby(pairs, key=lambda i: _fate(channels, ratios, i))
  found = [list(group) for _, group in groups]

  def column(name: str) -> list[Entry]:
    return [_range((channels[name][i] for i in group), _tokens) for group in found]

  return tables.make([
      ('channel pairs', [_range(group, str) for group in found]),
      ('wavelength', column('wavelength')),
      (f'turns in {facts["trained_length"]:,.0f} (trained)', column('turns_trained')),
      (f'turns in {facts["length"]:,} (wanted)', column('turns')),
      ('frequency', [_change([ratios[i] for i in group]) for group in found]),
      ('angles at the wanted length', [_angles(channels, group) for group in found]),
  ])


def _fate(channels: dict[str, list[float]], ratios: list[float], i: int) -> tuple:
  slowest = min(ratios)
  kept, divided = abs(ratios[i] - 1) < 1e-6, abs(ratios[i] / (slowest or 1) - 1) < 1e-6
  complete = channels['turns_trained'][i] >= 1, channels['turns'][i] >= 1
  return kept, divided, channels['stretch'][i] > findings.TOLERANCE, *complete


def _change(ratios: list[float]) -> Entry:
  if max(ratios) == 0:
    return Entry('0: no turn')
  if all(abs(ratio - 1) < 1e-6 for ratio in ratios):
    return Entry('kept')
  return Entry(f'÷ {_range((1 / ratio for ratio in ratios), _short)}')


def _angles(channels: dict[str, list[float]], group: list[int]) -> Entry:
  stretch = max(channels['stretch'][i] for i in group)
  if not any(channels['inv_freq'][i] for i in group):
    return Entry('none')
  if stretch > findings.TOLERANCE:
    return Entry(f'up to {stretch:.2f} × those of training')
  if all(channels['turns_trained'][i] >= 1 for i in group):
    return Entry('all met in training')
  return Entry('within those of training')


def rules(facts: Facts) -> Table:
  """Lays out what other rules would do, the layer's own first; GLOSSARY explains the columns."""
  own, *others = facts['rules']
  notes = ['as configured']
  names = [Entry(own['rule'], note=1)]
  for rule in others:
    if 'reason' in rule:
      notes.append(f'{rule["rule"]}: {rule["reason"]}')
    names.append(Entry(rule['rule'], note=len(notes) if 'reason' in rule else None))

  def column(show) -> list[Entry]:
    return [Entry('—' if 'reason' in rule else show(rule)) for rule in facts['rules']]

  scores = {facts['trained_length']: 'decay_at_trained', facts['length']: 'decay_at_length'}
  return tables.make(
      [
          ('rule', names),
          ('factor', column(lambda rule: f'{rule["attention_factor"]:.4f}')),
          ('slowest', column(lambda rule: _tokens(rule['slowest']))),
          ('complete', column(lambda rule: f'{rule["complete"]}')),
          ('past', column(lambda rule: f'{rule["past"]}')),
          ('reaches', column(lambda rule: _tokens(rule['reach']))),
          *(
              (f'q·k at {tokens:,.0f}', column(lambda rule, key=key: f'{rule[key]:.3f}'))
              for tokens, key in scores.items()
          ),
      ],
      notes,
  )


def phases(facts: Facts) -> Table:
  """Lays out the largest error of an angle at the wanted length, by how it is computed."""
  errors = [facts['phase_errors'][-1][precision] for precision in wavelengths.PRECISIONS]
  return tables.make([
      ('angle computed in', [Entry(text) for text in wavelengths.PRECISIONS.values()]),
      (f'error at {facts["text_length"]:,}, rad', [Entry(f'{error:.2g}') for error in errors]),
  ])


def channels(facts: Facts) -> Table:
  """Lays out every pair of channels."""
  columns = facts['channels']
  shown = {
      'wavelength': ('wavelength', _tokens),
      'inv_freq': ('frequency, rad a token', lambda x: f'{x:.6g}'),
      'unscaled': ('unscaled', lambda x: f'{x:.6g}'),
      'turns_trained': ('turns, trained', _short),
      'turns': ('turns, wanted', _short),
      'stretch': ('angle ÷ that of training', lambda x: f'{x:.2f}'),
      'float32_error': ('float32 error, rad', lambda x: f'{x:.1e}'),
      'bfloat16_error': ('bfloat16 error, rad', lambda x: f'{x:.1e}'),
  }
  return tables.make([
      ('pair', [Entry(str(i)) for i in range(len(columns['inv_freq']))]),
      *((title, [Entry(show(x)) for x in columns[key]]) for key, (title, show) in shown.items()),
  ])


# --- Comparison ----------------------------------------------------------------------------------


def settings(differing: list[Setting]) -> Table:
  """Lays out the keys whose values differ."""
  return tables.make([
      ('key', [Entry(s.key) for s in differing]),
      ('about', [Entry({'rope': 'RoPE'}.get(s.about, s.about)) for s in differing]),
      ('a', [Entry(_value(s.a)) for s in differing]),
      ('b', [Entry(_value(s.b)) for s in differing]),
  ])


def _value(value: Any) -> str:
  text = '—' if value is None else f'{value}'
  return text if len(text) <= 60 else text[:59] + '…'


def effect(a: Facts, b: Facts) -> Table:
  """Lays out what the difference does to the wavelengths, neighbours alike on one line."""
  x, y = a['channels'], b['channels']
  ratios = [_ratio(v, w) for v, w in zip(x['inv_freq'], y['inv_freq'], strict=True)]
  groups = itertools.groupby(range(len(ratios)), key=lambda i: _step(ratios[i], ratios))
  found = [list(group) for _, group in groups]
  return tables.make([
      ('channel pairs', [_range(group, str) for group in found]),
      ('wavelength in a', [_range((x['wavelength'][i] for i in g), _tokens) for g in found]),
      ('wavelength in b', [_range((y['wavelength'][i] for i in g), _tokens) for g in found]),
      ('b ÷ a', [_range((ratios[i] for i in g), _short) for g in found]),
  ])


def _ratio(before: float, after: float) -> float:
  """Computes by how much a wavelength grows; the frequency may become 0, or have been."""
  if before == after:
    return 1.0
  return before / after if after else math.inf


def _step(ratio: float, ratios: list[float]) -> tuple[str, float]:
  """Tells apart the smallest ratio, the largest and four steps between."""
  low, high = min(ratios), max(r for r in ratios if math.isfinite(r))
  if ratio in (low, high) or not math.isfinite(ratio) or low == 0:
    return 'end', ratio
  return 'between', math.floor(4 * math.log(ratio / low) / math.log(high / low))


# --- Numbers -------------------------------------------------------------------------------------


def _range(values: Iterable, show) -> Entry:
  values = list(values)
  low, high = show(min(values)), show(max(values))
  return Entry(low if low == high else f'{low} – {high}')


def _tokens(x: float) -> str:
  if not math.isfinite(x):
    return 'no end'
  return f'{x:,.0f}' if x >= 100 else _short(x)


def _short(x: float) -> str:
  return f'{x:,.0f}' if x >= 100 else f'{x:.3g}'
