# SPDX-License-Identifier: Apache-2.0
"""What the README shows is what there is."""

import pathlib
import re

import jax
import pytest

import pe_jax
from tests.factories import factories

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()


def blocks(section):
  """The python blocks between a line of the README and the next heading."""
  text = README.split(section, 1)[1].split('\n## ', 1)[0]
  return re.findall(r'```python\n(.*?)```', text, re.DOTALL)


def test_the_first_block_is_attention_with_rotated_queries_and_keys():
  (block,) = blocks('# pe_jax\n')
  assert len(block.strip().splitlines()) <= 10
  scope = {}
  exec(block, scope)
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 128, 8, 64))
  want = pe_jax.attend(
      q, k, v, scope['positions'], scope['positions'],
      encoding=pe_jax.rope(), params={}, mask=pe_jax.Mask(causal=True),
  )
  assert abs(scope['out'] - want).max() < 1e-4


def test_the_example_is_the_file_that_the_kit_checks():
  (block,) = blocks('## Your own encoding')
  file = (ROOT / 'tests' / 'data' / 'mine.py').read_text()
  assert block.strip() == file.strip()
  assert len(block.strip().splitlines()) <= 40


@pytest.mark.parametrize('name', factories())
def test_every_encoding_is_named(name):
  assert re.search(rf'`(?:pe_jax\.)?{name}[(`]', README)


def test_commands_name_modules_that_exist():
  modules = set(re.findall(r'-m ((?:experiments|pe_jax)[\w.]*)', README))
  assert modules
  for module in modules:
    path = ROOT / pathlib.Path(*module.split('.'))
    assert path.with_suffix('.py').exists() or (path / '__main__.py').exists(), module
