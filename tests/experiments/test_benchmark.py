# SPDX-License-Identifier: Apache-2.0
"""The benchmark: every side has a row, ratios are right, and what was measured is kept."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import errors
from experiments import parse
from experiments.bench import attention
from experiments.bench import peers
from experiments.bench import ratios
from experiments.bench import rotation
from experiments.bench import run
from experiments.bench import store as store_lib
from experiments.bench import turns

OTHERS = ['jax.nn, bias given', 'tokamax xla_chunked', 'torch SDPA', 'torch FlexAttention']


def asked(encodings, **changes):
  sizes = {'batch': 1, 'heads': 2, 'head_dim': 4, 'dtype': 'float32', 'rounds': 1, 'peers': False}
  given = {'kernels': attention.read_kernels(['dense']), 'lengths': (8,), 'parts': ('attention',)}
  return run.Asked(encodings=parse.encodings(encodings), **sizes | given | changes)


def measured(wanted, directory=None):
  return list(run.comparisons(wanted, store_lib.Store(directory), lambda line: None))


def without_running(calls, sides, **options):
  """In the place of turns.measure: every side has run in a second."""
  calls.append(options)
  return [{'name': s.name, 'role': s.role, 'over': dict(s.over), 'seconds': [1.0]} for s in sides]


def reasons(comparison):
  return {row['name']: row['reason'] for row in comparison['rows'] if 'reason' in row}


# --- Sides in turns ------------------------------------------------------------------------------


def side(name, answer, log=None, like=None, error=None):
  def make():
    if error is not None:
      raise error
    return turns.Ready(
        run=lambda: (log is not None and log.append(name), answer)[1],
        outputs=lambda out: [np.array(out, np.float32)],
    )

  return turns.Side(name, 'kernel', make, like=like)


def test_sides_run_in_turns_and_the_first_round_is_not_kept():
  log = []
  rows = turns.measure([side('a', 1, log), side('b', 1, log)], rounds=2, tolerance=0)
  assert ''.join(log) == 'ab' + 3 * 'ab'  # a check, and a round to warm up
  assert [(row['name'], len(row['seconds'])) for row in rows] == [('a', 2), ('b', 2)]
  assert all(second > 0 for row in rows for second in row['seconds'])


@pytest.mark.parametrize(
    'second, told',
    [
        (side('b', 1.1, like='a'), 'differs from a by 0.1, more than 0.01: not timed'),
        (side('b', np.nan, like='a'), 'differs from a by nan, more than 0.01: not timed'),
        (side('b', [1, 1], like='a'), 'gives shape (2,), and a (): not timed'),
        (side('b', 1, like='c'), 'c did not run'),
        (side('b', 1, error=ValueError('no such\nthing')), 'no such'),
        (side('b', 1, error=KeyError('mine')), "KeyError: 'mine'"),
        (side('b', 1, error=ModuleNotFoundError(name='torch.nn')), "pip install -e '.[peers]'"),
    ],
)
def test_what_is_not_timed_is_told(second, told):
  log = []
  first, other = turns.measure([side('a', 1, log), second], rounds=1, tolerance=0.01)
  assert told in other['reason'] and 'seconds' not in other
  assert '\n' not in other['reason']
  assert len(first['seconds']) == 1


# --- Ratios --------------------------------------------------------------------------------------


def test_ratios_are_of_the_fastest_runs_and_of_the_medians():
  rows = [
      {'name': 'a', 'seconds': [6.0, 1.0, 2.0], 'temp_bytes': 10, 'over': {'x': 'b', 'y': 'c'}},
      {'name': 'b', 'seconds': [4.0, 5.0, 8.0], 'temp_bytes': 40, 'over': {'self': 'b'}},
      {'name': 'c', 'reason': 'refused', 'over': {'x': 'b'}},
      {'name': 'd', 'cycles': 30, 'temp_bytes': 0, 'over': {'x': 'e', 'none': 'absent'}},
      {'name': 'e', 'cycles': 20, 'temp_bytes': 0, 'over': {}},
  ]
  a, b, c, d, e = (row['ratios'] for row in ratios.with_ratios(rows))
  assert a == {'x': {'min': 0.25, 'median': 0.4, 'temp_bytes': 0.25}, 'y': {}}
  assert b == {'self': {'min': 1, 'median': 1, 'temp_bytes': 1}}
  assert c == {'x': {}}
  assert d == {'x': {'cycles': 1.5}, 'none': {}}
  assert e == {}


# --- Attention -----------------------------------------------------------------------------------


def test_every_kernel_has_a_side_for_every_encoding_length_and_pass(monkeypatch):
  monkeypatch.setattr(turns, 'measure', functools.partial(without_running, []))
  kernels = attention.read_kernels(['dense', 'blockwise'])
  found = measured(asked('alibi(); rope(); fox()', kernels=kernels, lengths=(4, 8)))
  titles = [(one['encoding'], one['length'], one['phase']) for one in found]
  phases = ('forward', 'forward+backward')
  encodings = ('alibi()', 'rope()', 'fox()')
  assert titles == [(e, n, p) for n in (4, 8) for e in encodings for p in phases]
  names = ['default', 'dense', 'blockwise', 'xla']
  for one in found:
    assert [row['name'] for row in one['rows']] == names + [f'none() by {name}' for name in names]


def test_what_is_measured_has_times_memory_and_ratios():
  shape = attention.Shape(1, 8, 2, 4, 'float32')
  plans = attention.plan('t5()', parse.encoding('t5()'), ['default', 'xla'])
  for phase in (attention.FORWARD, attention.BACKWARD):
    sides = attention.sides(plans, shape, phase)
    rows = ratios.with_ratios(turns.measure(sides, rounds=1, tolerance=1e-4))
    assert [row['role'] for row in rows] == ['kernel', 'kernel', 'none', 'none']
    for row in rows:
      assert len(row['seconds']) == 1 and row['temp_bytes'] >= 0 and 'reason' not in row
    assert rows[0]['ratios'].keys() == {'jax.nn', 'none()'}
    assert rows[0]['ratios']['none()'].keys() >= {'min', 'median'}


@pytest.mark.parametrize(
    'typed, refused, told',
    [
        ('cope()', ['blockwise', 'splash', 'xla'], 'cannot compute the logits hook'),
        ('sinusoidal()', ['default', 'dense', 'blockwise', 'splash', 'xla'], 'on the embedding'),
        ('compose(learned(length=4), rope())', ['default', 'dense', 'xla'], 'has 4 positions'),
    ],
)
def test_refusals_are_told(typed, refused, told):
  kernels = attention.read_kernels(['dense', 'blockwise', 'splash'])
  plans = attention.plan(typed, parse.encoding(typed), kernels)
  sides = attention.sides(plans, attention.Shape(1, 8, 2, 4, 'float32'), attention.FORWARD)
  sides = [side for side in sides if side.name in kernels]
  rows = turns.measure(sides, rounds=1, tolerance=1e-4)
  why = reasons({'rows': rows})
  assert all(told in why[name] for name in refused)
  assert len(rows) == 5 and (typed != 'cope()' or why.keys() == set(refused))


def test_an_error_in_a_hook_of_the_users_is_a_row(tmp_path):
  (tmp_path / 'mine.py').write_text(
      'import pe_jax\n'
      'def _bias(*args):\n  raise KeyError("slopes")\n'
      'def broken():\n  return pe_jax.Encoding(name="broken", bias=_bias)\n'
  )
  plans = attention.plan('mine', parse.encoding(f'{tmp_path}/mine.py:broken()'), ['dense'])
  sides = attention.sides(plans, attention.Shape(1, 8, 2, 4, 'float32'), attention.FORWARD)
  (row,) = turns.measure(sides[:1], rounds=1, tolerance=1e-4)
  assert row['reason'] == "KeyError: 'slopes'"


def test_the_backward_pass_returns_every_gradient():
  shape = attention.Shape(1, 4, 2, 4, 'float32')
  encoding = parse.encoding('fox()')
  fn, make = attention.program(encoding, 'dense', shape, attention.BACKWARD)
  start, *args = make()
  out, gradients = jax.jit(fn)(start, *args)
  assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, tuple(args))
  assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))
  assert jnp.array_equal(out, attention.attend(encoding, 'dense', *args))


def test_unknown_kernels_and_parts_are_told():
  with pytest.raises(errors.UserError, match="no kernel 'block': --kernels takes blockwise"):
    attention.read_kernels(['block'])
  with pytest.raises(errors.UserError, match='--head_dim=3 cannot be'):
    run.check(asked('rope()', head_dim=3, parts=('rotation',)))
  with pytest.raises(errors.UserError, match='--parts=attention,all cannot be'):
    run.check(asked('rope()', parts=('attention', 'all')))


# --- Other libraries -----------------------------------------------------------------------------


def test_other_libraries_are_told_to_be_missing(monkeypatch):
  for name in ('torch', 'tokamax', 'transformers'):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
  absent = ('tokamax', 'torch')
  missing = {name: f"{name} is not installed: pip install -e '.[peers]'" for name in absent}
  shape, t5 = attention.Shape(1, 8, 2, 4, 'float32'), parse.encoding('t5()')
  for phase in (attention.FORWARD, attention.BACKWARD):
    ours = attention.sides(attention.plan('t5()', t5, ['default']), shape, phase)[:1]
    rows = turns.measure([*ours, *peers.sides(t5, shape, phase)], rounds=1, tolerance=1e-4)
    assert [row['name'] for row in rows] == ['default', *OTHERS]
    told = reasons({'rows': rows})
    libraries = zip(OTHERS[1:], ('tokamax', 'torch', 'torch'), strict=True)
    assert told == {name: missing[library] for name, library in libraries}
  rotations = [side for side in rotation.sides(shape, with_peers=True) if side.role == 'peer']
  rows = turns.measure(rotations, rounds=1, tolerance=1e-4)
  assert len(rows) == 4 and all(row['reason'] == missing['torch'] for row in rows)


@pytest.mark.parametrize('typed', ['rope()', 'cope()', 'shaw()', 'fox()'])
def test_what_is_no_bias_of_positions_is_told(typed):
  with pytest.raises(turns.Refused, match='takes biases of positions'):
    peers.refuse_what_is_no_bias(parse.encoding(typed))


# --- Rotations -----------------------------------------------------------------------------------


def test_measures_every_form_of_every_rotation():
  (found,) = measured(asked('rope()', parts=('rotation',), dtype='bfloat16'))
  sources = ('tables given', 'from positions')
  forms = [f'{form}, {source}' for form in ('half', 'interleaved') for source in sources]
  assert [row['name'] for row in found['rows']] == ['copy', *forms]
  assert reasons(found) == {}
  for row in found['rows']:
    assert len(row['seconds']) == 1 and row['bytes_over_least'] > 0


# --- What is kept --------------------------------------------------------------------------------


def test_goes_on_where_it_stopped(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(turns, 'measure', functools.partial(without_running, calls))
  wanted = asked('alibi(); none()')
  stopped = run.comparisons(wanted, store_lib.Store(tmp_path), lambda line: None)
  first = [next(stopped), next(stopped)]  # and then it is killed
  again = measured(wanted, tmp_path)
  assert len(calls) == 4  # the two of alibi() are not measured again
  assert json.dumps(again[:2]) == json.dumps(first)
  assert json.dumps(measured(wanted, tmp_path)) == json.dumps(again) and len(calls) == 4
  measured(asked('alibi(); none()', rounds=2), tmp_path)
  assert len(calls) == 8  # other settings
  kept = [path.name for path in (tmp_path / 'measured').iterdir()]
  assert len(kept) == 8 and all(name.endswith('.json') for name in kept)
