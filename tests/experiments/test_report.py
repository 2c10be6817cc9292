# SPDX-License-Identifier: Apache-2.0
"""Tables, figure and page, from made-up numbers."""

import csv
import json
import math

import pytest

from experiments import figure
from experiments import page
from experiments import results
from experiments import tables


def cell(typed: str, losses: dict[int, list[float | None] | str], **settings) -> dict:
  """Makes the result of a cell from losses by length, one a member, or a reason."""
  return {
      'identity': {
          'encoding': typed,
          'settings': {'window': 64, 'seeds': 2} | settings,
          'corpus': 'c0ffee',
          'device': 'cpu',
          'versions': {'jax': '0.10'},
      },
      'points': [{}],
      'seeds': [0, 1],
      'lengths': [
          {'length': length, 'reason': found}
          if isinstance(found, str)
          else {'length': length, 'bytes': 640, 'loss': found, 'last_quarter': found}
          for length, found in losses.items()
      ],
      'parameters': {'encoding': 3, 'total': 12345},
      'cost': {'step_seconds': 0.0123, 'temporary_bytes': 4_560_000},
  }


CELLS = [
    cell('rope()', {64: [1.0, 1.2], 128: [3.0, 3.0]}),
    cell('alibi_<&>%', {64: [1.5, 1.5], 128: [1.4, 1.4]}),
    cell('learned()', {64: [0.9, 0.9], 128: 'its table ends'}),
    cell('unstable()', {64: [None, 1.0], 128: [800.0, 1.0]}),
]


def test_the_lowest_of_each_column_is_marked():
  table = tables.by_length(results.summarize(CELLS))
  best = [[entry.best for entry in row] for row in table.rows]
  assert best == [
      [False, False, False, False],
      [False, False, True, True],
      [False, True, False, False],
      [False, False, False, False],
  ]


def test_spread_is_that_of_a_sample_and_perplexity_is_taken_seed_by_seed():
  [row] = results.summarize(CELLS[:1])
  found = row['lengths'][0]
  assert found['loss']['mean'] == pytest.approx(1.1)
  assert found['loss']['deviation'] == pytest.approx(0.2 / math.sqrt(2))
  assert found['perplexity']['mean'] == pytest.approx((math.e + math.exp(1.2)) / 2)


def test_a_run_that_diverged_says_so_and_wins_nothing():
  rows = results.summarize(CELLS)
  text = str(tables.by_length(rows).rows[3][1])
  assert text == 'diverged'
  assert json.dumps(rows, allow_nan=False)


def test_of_a_grid_the_best_point_at_the_trained_length_is_shown():
  swept = cell('rope()', {64: [3.0, 3.0, 1.0, 1.0], 128: [1.0, 1.0, 2.0, 2.0]})
  swept['points'] = [{'learning_rate': 0.1}, {'learning_rate': 0.01}]
  [row] = results.summarize([swept])
  assert row['settings'] == {'learning_rate': 0.01}
  assert row['lengths'][1]['loss']['seeds'] == [2.0, 2.0]
  assert len(tables.grid(row).rows) == 2
  assert 'learning_rate=0.01' in str(tables.by_length([row]).rows[0][1])


def test_names_say_in_what_cells_differ_and_never_clash():
  other = cell('rope()', {64: [1.0, 1.0]})
  other['identity']['versions'] = {'jax': '0.11'}
  names = [row['encoding'] for row in results.summarize([CELLS[0], other])]
  assert len(set(names)) == 2 and all(name.startswith('rope() #') for name in names)
  other = cell('a', {64: [1.0, 1.0]}, batch=2)
  names = [row['encoding'] for row in results.summarize([CELLS[0], other])]
  assert names == ['rope() batch=None', 'a batch=2']


def test_html_and_latex_escape_what_is_typed():
  table = tables.by_length(results.summarize(CELLS))
  assert 'alibi_&lt;&amp;&gt;%' in page.table(table)
  assert r'alibi\_<\&>\%' in tables.to_latex(table)
  rows = [line for line in tables.to_latex(table).splitlines() if line.endswith(r'\\')]
  assert len({line.count(' & ') for line in rows}) == 1


def test_csv_keeps_every_number_in_full():
  lines = list(csv.DictReader(tables.to_csv(results.summarize(CELLS)).splitlines()))
  assert len(lines) == 8
  assert float(lines[0]['perplexity_mean']) == (math.exp(1.0) + math.exp(1.2)) / 2
  assert lines[5]['reason'] == 'its table ends'


def test_the_same_results_draw_the_same_figure():
  rows = results.summarize(CELLS)
  first, second = figure.draw(rows), figure.draw(rows)
  assert set(first) == {'png', 'svg', 'pdf'}
  assert first['svg'] == second['svg'] and first['pdf'] == second['pdf']


def test_a_figure_without_a_single_number_is_still_drawn():
  assert figure.draw(results.summarize([cell('learned()', {64: 'its table ends'})]))['png']


def test_labels_keep_their_distance_and_their_order():
  heights = figure._spread([0.0, 0.01, 0.02, 0.9], gap=0.1)
  gaps = [b - a for a, b in zip(heights, heights[1:], strict=False)]
  assert all(gap > 0.0999 for gap in gaps)
  assert sum(heights[:3]) / 3 == pytest.approx(0.01)
  assert heights[3] == 0.9
