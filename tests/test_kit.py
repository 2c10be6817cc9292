# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit tells, and how it is called."""

import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

import pe_jax
from pe_jax import testing
from pe_jax._load import load
from pe_jax.testing import __main__ as command
from tests.mutants import formulas
from tests.mutants import pairwise
from tests.mutants import precision
from tests.mutants import tokens
from tests.mutants.table import DIMS

MINE = pathlib.Path(__file__).parent / 'data' / 'mine.py'


def finding(factory, law, **options):
  """What one law finds about an encoding."""
  try:
    report = testing.check(factory, DIMS, laws=(law,), **options)
  except testing.ConformanceError as error:
    report = error.report
  return next(f for f in report.findings if f.law == law)


# --- A file of one's own -------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['log_bias', 'gated'])
def test_encodings_of_ones_own_keep_every_law(name):
  assert len(MINE.read_text().splitlines()) <= 40
  assert testing.check(getattr(load(MINE), name), DIMS).ok


def test_a_file_is_imported_once_under_any_path(monkeypatch):
  module = load(MINE)
  monkeypatch.chdir(MINE.parent)
  assert load('mine.py') is module is load(f'../data/{MINE.name}')
  assert module.log_bias() == load('mine.py').log_bias()


def test_a_file_that_failed_is_tried_again(tmp_path):
  file = tmp_path / 'bad.py'
  file.write_text('1 / 0\n')
  with pytest.raises(ZeroDivisionError):
    load(file)
  file.write_text('fine = True\n')
  assert load(file).fine


# --- The report ----------------------------------------------------------------------------------


def test_a_report_has_a_line_for_every_law_asked_for():
  report = testing.check(pe_jax.alibi, DIMS, laws=('equal', 'causal_only'))
  assert [f.law for f in report.findings] == ['equal', 'causal_only']
  assert [f.status for f in report.findings] == ['passed', 'not applicable']
  assert report.ok and report.failed == ()
  table = str(report)
  assert 'hash alike' in table and 'does not claim to be causal only' in table
  assert '1 passed, 0 failed, 1 not applicable' in table
  assert '\033[' not in table and '\033[32m' in report.table(colour=True)


def test_laws_have_names_and_sentences_of_their_own():
  names = [law.__name__ for law in testing.LAWS]
  assert len(set(names)) == len(names)
  for law in testing.LAWS:
    sentence = law.__doc__.splitlines()[0]
    assert law.__name__.startswith('law_') and 10 < len(sentence) <= 90 and sentence[-1] != '.'


def test_an_error_lists_the_law_what_was_seen_and_the_input():
  with pytest.raises(AssertionError) as error:
    testing.check(precision.rotary_torch_positions_in_the_dtype, DIMS, laws=('told_apart', 'equal'))
  message = str(error.value)
  assert 'breaks 1 laws' in message and 'told_apart' in message and 'hash alike' not in message
  assert '769 of 4096' in message  # bfloat16 has that many integers below 4096
  assert 'positions=[256, 257]' in message and 'dtype=bfloat16' in message


def test_the_input_is_the_smallest_that_fails():
  found = finding(tokens.fox_of_the_chunk_alone, 'place_prefix')
  assert found.input == 'tokens=2'
  assert finding(pairwise.bias_before_the_scale, 'scale').input.startswith('tokens=2')


def test_an_encoding_that_raises_breaks_the_law_and_names_its_line():
  found = finding(formulas.option_that_crashes, 'options')
  assert found.status == 'failed' and 'AttributeError' in found.message
  assert 'formulas.py, line' in found.message


def test_arrays_that_cannot_be_made_break_one_law_alone():
  def needs_an_option(key, dims, *, width):
    return {'table': jnp.zeros(width)}

  with pytest.raises(testing.ConformanceError) as error:
    testing.check(lambda: pe_jax.Encoding(name='bad', init=needs_an_option), DIMS)
  assert error.value.report.failed == ('init',)
  assert 'width' in str(error.value)


# --- Options -------------------------------------------------------------------------------------


def test_options_that_the_kit_cannot_vary_are_asked_for():
  found = finding(pe_jax.alibi, 'options')
  assert found.status == 'not applicable' and 'slopes' in found.message
  assert finding(pe_jax.none, 'options').message == 'it has no options'
  tried = finding(pe_jax.sinusoidal, 'options')
  assert tried.status == 'passed' and tried.message == 'not tried: order'


def test_an_option_that_matters_beside_another_one_is_no_fault():
  assert (
      finding(pe_jax.rope, 'options', options={'part': 'trailing', 'width': 8}).status == 'passed'
  )
  assert finding(pe_jax.rope, 'options', options={'part': 'trailing'}).status == 'failed'


# --- Several axes, and other kernels --------------------------------------------------------------


def _blocks(params, q, k, q_pos, k_pos, scale):
  steps = [jnp.abs(pe_jax.positions.distance(a, b)) for a, b in zip(q_pos, k_pos)]
  steps = sum(steps)[..., None, :, :]
  return -jnp.broadcast_to(steps, (*q.shape[:-3], q.shape[-2], *steps.shape[-2:]))


def city_blocks():
  return pe_jax.Encoding(name='city_blocks', bias=_blocks, relative=True, by_distance=True)


def test_positions_may_be_a_tuple_of_axes():
  laws = ('tiles', 'decode', 'packing', 'relative', 'by_distance', 'permutation', 'no_constants')
  report = testing.check(city_blocks, DIMS, axes=2, laws=laws)
  assert {f.status for f in report.findings} == {'passed'}


def test_a_kernel_that_refuses_an_encoding_breaks_no_law():
  options = {'kernel': pe_jax.kernels.xla}
  assert finding(pe_jax.cope, 'decode', **options).status == 'not applicable'
  assert 'logits' in finding(pe_jax.cope, 'kernel', **options).message
  assert finding(pe_jax.alibi, 'kernel', **options).status == 'passed'


# --- Wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'factory, options, hint',
    [
        (lambda: 3, {}, 'must return a pe_jax.Encoding'),
        (lambda: pe_jax.learned(length=8), {}, 'holds 8 positions'),
        (pe_jax.none, {'laws': ('equl',)}, "no laws ['equl']"),
        (pe_jax.none, {'options': {'base': 2.0}}, "no option 'base'"),
        (pe_jax.none, {'reference': {'bais': None}}, "no hook 'bais'"),
        (pe_jax.learned, {}, 'length'),
    ],
)
def test_a_wrong_call_is_a_value_error(factory, options, hint):
  with pytest.raises(ValueError) as error:
    testing.check(factory, DIMS, **options)
  assert hint in str(error.value)


# --- The command ---------------------------------------------------------------------------------

BROKEN = """
import pe_jax
def _bias(params, q, k, q_pos, k_pos, scale):
  return pe_jax.alibi_bias(q_pos, k_pos, pe_jax.alibi_slopes(4)) / scale
def broken():
  return pe_jax.Encoding(name='broken', bias=_bias)
def needs(width): return None
three = lambda: 3
def leaves(): raise SystemExit(0)
"""


@pytest.mark.parametrize(
    'call, hint',
    [
        ('broken', 'is not FILE.py:factory'),
        ('nowhere.py:broken', 'there is no file nowhere.py'),
        ('{file}:brokn', "has no function 'brokn': it has ['_bias', 'broken', 'needs', 'three'"),
        ('{file}:needs', 'needs width'),
        ('{file}:three', 'returned 3'),
        ('{file}:three()', 'returned 3'),
        ('{file}:leaves', 'SystemExit: 0 (file.py, line'),
        ('{bad}:broken', 'failed to import: NameError'),
        ('{file}:broken --heads 3', 'not a multiple of kv_heads=2'),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(call, hint, tmp_path, capsys):
  (tmp_path / 'file.py').write_text(BROKEN)
  (tmp_path / 'bad.py').write_text('pe_jax.Encoding\n')
  paths = {'file': tmp_path / 'file.py', 'bad': tmp_path / 'bad.py'}
  assert command.main(call.format(**paths).split()) == 2
  out, err = capsys.readouterr()
  assert not out and hint in err and len(err.splitlines()) == 1


def test_the_command_prints_the_table_and_fails_with_status_1(tmp_path):
  (tmp_path / 'file.py').write_text(BROKEN)
  run = subprocess.run(
      [
          sys.executable,
          '-m',
          'pe_jax.testing',
          'file.py:broken',
          '--law',
          'scale',
          '--law',
          'sharded',
      ],
      capture_output=True,
      cwd=tmp_path,
      env={'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(pathlib.Path(pe_jax.__file__).parents[1])},
      text=True,
  )
  assert run.returncode == 1, run.stderr
  assert 'FAIL scale' in run.stdout and '\033[' not in run.stdout
  assert '1 device' not in run.stdout  # it has emulated eight
