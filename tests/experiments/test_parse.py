# SPDX-License-Identifier: Apache-2.0
"""Encodings as they are typed."""

import pickle
import sys

import pytest

from experiments import errors
from experiments import parse
import pe_jax
from pe_jax import scaling

MINE = """
import pe_jax

@pe_jax.factory
def mine(*, width: int = 8) -> pe_jax.Encoding:
  if width == 13:
    raise RuntimeError('thirteen')
  return pe_jax.Encoding(name='mine', max_length=width)
"""


@pytest.fixture
def mine(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(MINE)
  return path


@pytest.mark.parametrize(
    ('typed', 'made'),
    [
        ('none()', pe_jax.none()),
        ('rope(base=5e5)', pe_jax.rope(base=5e5)),
        ('rope(base = 500_000)', pe_jax.rope(base=5e5)),
        ('alibi(slopes=(0.5, 0.25))', pe_jax.alibi(slopes=(0.5, 0.25))),
        ('alibi(slopes=[0.5, 0.25])', pe_jax.alibi(slopes=(0.5, 0.25))),
        ("rope(layout='interleaved')", pe_jax.rope(layout='interleaved')),
        ('learned(length=8, offset=2)', pe_jax.learned(length=8, offset=2)),
        ('compose(rope(), alibi())', pe_jax.compose(pe_jax.rope(), pe_jax.alibi())),
        (
            'rope(scaling=scaling.dynamic_ntk(factor=2, original_length=64))',
            pe_jax.rope(scaling=scaling.dynamic_ntk(factor=2, original_length=64)),
        ),
        (
            'with_positions(rope(), bind(positions.interpolate, factor=4))',
            pe_jax.with_positions(
                pe_jax.rope(), pe_jax.bind(pe_jax.positions.interpolate, factor=4)
            ),
        ),
    ],
)
def test_reads_what_python_would(typed, made):
  assert parse.encoding(typed) == made


def test_keeps_what_was_typed_as_the_name_and_the_order():
  found = parse.encodings(' t5(buckets=8,max_distance=32);rope( base=1e4 ) ; none();')
  assert list(found) == ['t5(buckets=8,max_distance=32)', 'rope( base=1e4 )', 'none()']


def test_reads_a_users_file_once_and_only_when_it_is_named(mine):
  loaded = set(sys.modules)
  parse.encodings('rope()')
  assert not [name for name in set(sys.modules) - loaded if 'pe_jax_file' in name]
  first = parse.encoding(f'{mine}:mine(width=32)')
  again = parse.encoding(f'{mine.parent}/../{mine.parent.name}/mine.py:mine(width=32)')
  assert first == again and first.max_length == 32
  assert pickle.loads(pickle.dumps(first)) == first
  inside = parse.encoding(f'compose(rope(), {mine}:mine())')
  assert [part.name for part in inside.parts] == ['rope(base=10000.0)', 'mine(width=8)']


def test_a_factory_of_the_users_may_stand_alone(mine):
  assert parse.encoding(f'{mine}:mine') == parse.encoding(f'{mine}:mine()')


@pytest.mark.parametrize(
    ('typed', 'told'),
    [
        ('roep()', ["no encoding 'roep'", 'Factories: rope, ', 'alibi', 'FILE.py:roep(...)']),
        ('rope(bas=3)', ["no argument 'bas'", 'Its arguments: base, ']),
        ('rope(1e4)', ['too many positional', 'rope(*, base=10000.0']),
        ('learned()', ["'length'", 'learned(*, length']),
        ('learned(length=-3)', ['length=-3', 'above 0']),
        ('rope', ['is a function', 'write rope(...)']),
        ('scaling.linear(factor=2)', ['not an encoding', 'Factories: ']),
        ('rope(scaling=scaling.nkt())', ["no 'nkt'", 'It has ntk']),
        ('os.getcwd()', ["'os' is unknown", 'positions, scaling']),
        ('rope(', ['never closed', "separated by ';'"]),
        ('', ['no encodings were given', "separated by ';'"]),
        ('rope(base=1 + 1)', ["'1 + 1'", 'numbers, strings']),
        ('rope(base={[]: 1})', ["'{[]: 1}'", 'numbers, strings']),
        ('rope(**{})', ['write its arguments out']),
        ('rope(); rope(base=10000)', ['are the same encoding', 'list it once']),
        ('rope(base="1e4")', ["in the encoding 'rope(base=\"1e4\")'"]),
        ('nowhere.py:gated()', ['no file nowhere.py']),
    ],
)
def test_says_what_is_wrong_what_is_allowed_and_what_to_do(typed, told):
  with pytest.raises(errors.UserError) as caught:
    parse.encodings(typed)
  for words in told:
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ('content', 'told'),
    [
        ('import nowhere_at_all', ['failed to import', 'nowhere_at_all', 'line 1']),
        ('x = (', ['failed to import', 'SyntaxError', 'line 1']),
        ('\nraise SystemExit(3)', ['failed to import', 'SystemExit', 'line 2']),
        ('def gated():\n  raise SystemExit(0)', ['gated raised', 'SystemExit', 'line 2']),
        (MINE, ["has no 'gated'", 'mine']),
    ],
)
def test_says_why_a_users_file_cannot_be_used(tmp_path, content, told):
  path = tmp_path / 'own.py'
  path.write_text(content)
  with pytest.raises(errors.UserError) as caught:
    parse.encoding(f'{path}:gated()')
  for words in [*told, 'own.py']:
    assert words in str(caught.value)


def test_says_where_a_users_factory_failed(mine):
  with pytest.raises(errors.UserError, match=r'RuntimeError: thirteen \(.*mine.py, line 7\)'):
    parse.encoding(f'{mine}:mine(width=13)')


def test_hashes_the_users_files(mine):
  typed = f'compose(rope(), {mine}:mine())'
  before = parse.source_files(typed)
  assert list(before) == [str(mine)]
  mine.write_text(MINE + '# changed\n')
  assert parse.source_files(typed) != before
  assert parse.source_files('rope()') == {}
