# SPDX-License-Identifier: Apache-2.0
"""The numbers of finished cells, summed up over seeds."""

from collections.abc import Iterable
import hashlib
import json
import math
import statistics
from typing import Any

Row = dict[str, Any]

_MOST = 700.0  # exp of more does not fit a float


def summarize(cells: list[dict[str, Any]]) -> list[Row]:
  """Returns one row a cell: mean and spread over its seeds at every length.

  Of a grid, the point with the lowest mean loss at the shortest length is shown; `points` has all.

  Args:
    cells: contents of `result.json` of each.
  """
  labels = _labels([cell['identity'] for cell in cells])
  return [_row(label, cell) for label, cell in zip(labels, cells, strict=True)]


def _row(label: str, cell: dict[str, Any]) -> Row:
  points = [
      {'settings': point, 'lengths': [_cut(entry, i, cell) for entry in cell['lengths']]}
      for i, point in enumerate(cell['points'])
  ]
  best = min(points, key=_shortest_loss)
  return {
      'encoding': label,
      'window': cell['identity']['settings']['window'],
      'settings': best['settings'],
      'lengths': best['lengths'],
      'points': points if len(points) > 1 else [],
      'seeds': cell['seeds'],
      'parameters': cell['parameters'],
      'cost': cell['cost'],
      'device': cell['identity']['device'],
  }


def _cut(entry: dict[str, Any], point: int, cell: dict[str, Any]) -> dict[str, Any]:
  """Takes the seeds of one grid point out of what was measured at one length."""
  if 'reason' in entry:
    return entry
  count = len(cell['seeds'])
  members = slice(point * count, (point + 1) * count)
  loss, tail = entry['loss'][members], entry['last_quarter'][members]
  return {
      'length': entry['length'],
      'bytes': entry['bytes'],
      'loss': spread(loss),
      'last_quarter': spread(tail),
      'perplexity': spread([None if x is None or x > _MOST else math.exp(x) for x in loss]),
  }


def spread(values: list[float | None]) -> dict[str, Any]:
  """Returns mean and standard deviation over seeds; None where one diverged or there is but one."""
  whole = None not in values
  return {
      'mean': statistics.fmean(values) if whole else None,
      'deviation': statistics.stdev(values) if whole and len(values) > 1 else None,
      'seeds': values,
  }


def _labels(identities: list[dict[str, Any]]) -> list[str]:
  """Names each cell by its encoding and, where cells differ in more, by what they differ in."""
  settings = [
      _flatten(identity['settings'])
      | {'corpus': identity['corpus'][:8], 'device': identity['device']}
      for identity in identities
  ]
  keys = sorted({key for cell in settings for key in cell})
  differing = [key for key in keys if len({str(cell.get(key)) for cell in settings}) > 1]
  labels = [
      ' '.join([identity['encoding'], *(f'{key}={cell.get(key)}' for key in differing)])
      for identity, cell in zip(identities, settings, strict=True)
  ]
  # What is left differs in versions, in source or in a file of the user's.
  return [
      label if labels.count(label) == 1 else f'{label} #{digest(identity)[:4]}'
      for label, identity in zip(labels, identities, strict=True)
  ]


def digest(identity: dict[str, Any]) -> str:
  """Hashes what determines the numbers of a cell."""
  return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def _flatten(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
  flat = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def _shortest_loss(point: dict[str, Any]) -> float:
  """Returns the mean loss at the shortest length; infinity where there is none."""
  loss = point['lengths'][0].get('loss', {}).get('mean')
  return math.inf if loss is None else loss


def shared(cells: list[dict[str, Any]]) -> dict[str, Any]:
  """Lists the different texts, configs, versions and devices that the cells were made with."""
  identities = [cell['identity'] for cell in cells]
  return {
      'corpora': _distinct(cell['corpus'] for cell in cells),
      'configs': _distinct(identity['settings'] for identity in identities),
      'versions': _distinct(identity['versions'] for identity in identities),
      'devices': _distinct(identity['device'] for identity in identities),
  }


def _distinct(values: Iterable[Any]) -> list[Any]:
  found = []
  for value in values:
    if value not in found:
      found.append(value)
  return found
