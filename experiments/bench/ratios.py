# SPDX-License-Identifier: Apache-2.0
"""Rows of a comparison divided by each other. Pure functions of what was measured."""

from collections.abc import Sequence
import statistics
from typing import Any

Row = dict[str, Any]

QUANTITIES = ('min', 'median', 'temp_bytes', 'cycles')


def with_ratios(rows: Sequence[Row]) -> list[Row]:
  """Returns the rows, each with `ratios`: {label: ratio to the side that `over` names}.

  >>> a = {'name': 'a', 'seconds': [3.0, 1.0, 2.0], 'over': {'b': 'b'}}
  >>> b = {'name': 'b', 'seconds': [4.0, 5.0, 4.0], 'over': {}}
  >>> with_ratios([a, b])[0]['ratios']
  {'b': {'min': 0.25, 'median': 0.5}}
  """
  by_name = {row['name']: row for row in rows}

  def divide(row: Row) -> dict[str, dict[str, float]]:
    return {label: ratio(row, by_name.get(name, {})) for label, name in row['over'].items()}

  return [row | {'ratios': divide(row)} for row in rows]


def ratio(row: Row, other: Row) -> dict[str, float]:
  """Divides what was measured of one row by that of another, where both have it."""
  above, below = quantities(row), quantities(other)
  return {
      name: above[name] / below[name]
      for name in QUANTITIES
      if above.get(name) is not None and below.get(name)
  }


def quantities(row: Row) -> dict[str, float | None]:
  """Sums a row up: fastest and median seconds, and what the compiler says."""
  found = {name: row.get(name) for name in QUANTITIES}
  if row.get('seconds'):
    found |= {'min': min(row['seconds']), 'median': statistics.median(row['seconds'])}
  return found
