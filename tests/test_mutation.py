# SPDX-License-Identifier: Apache-2.0
"""The tool that breaks the encodings, on a toy; and a few faults with the law that finds each."""

import ast
import json
import pathlib
import subprocess
import sys

from tests import changes

TOY = '''
"""Text with 1 number."""

@decorated(1)
def f(x: Array[1], *, steps: int = 3, fast: bool = True) -> Array[2]:
  """More text, more numbers: 2."""
  if x < 0:
    raise ValueError(f'{x + 1} is below 0.')
  check_positive(x=x - 1)
  y = jnp.where(x <= steps, jnp.sin(x), 0.5)
  return g(x, -y).astype(jnp.float32) * jnp.sum(y, axis=-1)
'''

LEFT, RIGHT = 'g(x, -y).astype(jnp.float32)', 'jnp.sum(y, axis=-1)'
EXPECTED = {
    ('off by one', '3', '4'),
    ('off by one', '3', '2'),
    ('flag', 'True', 'False'),
    ('comparison', 'x <= steps', 'x < steps'),
    ('branch', 'jnp.where(x <= steps, jnp.sin(x), 0.5)', 'jnp.sin(x)'),
    ('branch', 'jnp.where(x <= steps, jnp.sin(x), 0.5)', '0.5'),
    ('function', 'jnp.sin(x)', 'jnp.cos(x)'),
    ('off by one', '0.5', '1.5'),
    ('operator', f'{LEFT} * {RIGHT}', f'{LEFT} / {RIGHT}'),
    ('forgotten', LEFT, 'g(x, -y)'),
    ('swapped', 'g(x, -y)', 'g(-y, x)'),
    ('sign', '-y', 'y'),
    ('dtype', 'jnp.float32', 'jnp.bfloat16'),
    ('forgotten', RIGHT, 'jnp.sum(y)'),
    ('sign', '-1', '1'),
    ('axis', '-1', '-2'),
    ('off by one', '-1', '-0'),
    ('swapped', 'jnp.where(x <= steps, jnp.sin(x), 0.5)', 'jnp.where(jnp.sin(x), x <= steps, 0.5)'),
}

# File, what stands there, what a mutant has instead, and a law that finds it.
FAULTS = (
    ('_alibi', '-slopes', 'slopes', 'reference'),
    ('_alibi', 'distance(q_pos, k_pos)', 'distance(k_pos, q_pos)', 'tiles'),
    ('_fox', 'segments == 0', 'segments != 0', 'place_segments'),
    ('_learned', 'True', 'False', 'absolute'),
    ('_rope', 'a * cos - b * sin', 'a * cos + b * sin', 'relative'),
    ('_shaw', 'table.shape[0] // 2', 'table.shape[0] * 2', 'reference'),
    ('_sinusoidal', 'jnp.cos(angle)', 'jnp.sin(angle)', 'reference'),
    ('_t5', 'jnp.float32', 'jnp.bfloat16', 'shapes'),
    ('_t5', 'relative > 0', 'relative >= 0', 'reference'),
)


def test_toy_has_these_mutants_and_no_others():
  seen = {(m.kind, m.before, m.after) for m in changes.mutants('toy', TOY)}
  assert {kind for kind, _, _ in seen ^ EXPECTED} == set(), seen ^ EXPECTED


def test_every_mutant_is_one_other_program():
  found = changes.mutants('toy', TOY)
  texts = {m.source for m in found} | {ast.unparse(ast.parse(TOY))}
  assert len(texts) == len(found) + 1


def test_lines_are_those_of_the_file():
  lines = TOY.splitlines()
  for m in changes.mutants('toy', TOY):
    assert m.kind != 'sign' or '-' in lines[m.line - 1][m.column - 1 :], m


# A process of its own, as what forks must not have used jax.
_JUDGE = """
import json, sys
from tests import changes, mutation

verdicts = []
with mutation.cached():
  for file, before, after, law in json.load(sys.stdin):
    found = mutation.mutants_of(mutation.ROOT / 'pe_jax' / 'encodings' / f'{file}.py')
    broken = next((m for m in found if (m.before, m.after) == (before, after)), None)
    verdicts.append(mutation.judge(broken, (law,)) if broken else 'no such mutant')
print(json.dumps(verdicts))
"""


def test_a_law_finds_each_of_these_faults():
  run = subprocess.run(
      [sys.executable, '-c', _JUDGE],
      input=json.dumps(FAULTS),
      capture_output=True,
      cwd=pathlib.Path(__file__).parent.parent,
      text=True,
      check=True,
  )
  assert json.loads(run.stdout) == [f'{law} broken' for *_, law in FAULTS]
