# SPDX-License-Identifier: Apache-2.0
"""What the TPU's compiler plans for Pallas kernels, for which its HLO has no estimate.

It schedules a kernel in bundles, each of about one cycle, and writes how many into a dump. A kernel
runs its bundles once for each step of its grid.
"""

from collections.abc import Iterator
import math
import pathlib
import re
from typing import Any

# Of LIBTPU_INIT_ARGS. They make compiling several times slower.
DUMP_FLAGS = (
    '--xla_jf_dump_to={} --xla_jf_dump_llo_text=true'
    ' --xla_jf_dump_llo_pass_label_regex=.*final_bundles.*'
)

_TOTAL = re.compile(r'total scheduled bundles:\s+(\d+)')


def scheduled(directory: pathlib.Path, kernel: str) -> int:
  """Reads the bundles of one step of a kernel's grid out of the compiler's dump.

  Args:
    directory: where the compiler dumped one program.
    kernel: the name of its call in the optimised program.

  Raises:
    ValueError: the dump does not say, or says two things.
  """
  found = {
      int(_TOTAL.search(path.read_text()).group(1))
      for path in directory.glob('*schedule-analysis_final_bundles.txt')
      if f'-{kernel}-' in path.name
  }
  if len(found) != 1:
    raise ValueError(
        f'{directory} has {len(found)} schedules of the kernel {kernel}, not one: compile one'
        ' program at a time into an empty directory.'
    )
  return found.pop()


def grids(jaxpr: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Finds the Pallas calls of a traced program: (name, grid) of each."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'pallas_call':
      yield eqn.params['name'], tuple(eqn.params['grid_mapping'].grid)
      continue
    for value in eqn.params.values():
      for item in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(item, 'jaxpr', item)
        if hasattr(inner, 'eqns'):
          yield from grids(inner)


def causal_steps(grid: tuple[int, ...]) -> int:
  """Counts the steps of a grid that a causal mask leaves.

  The last two axes of three or more are tiles of the queries and tiles of the keys, in either
  order, of equally many tokens.

  >>> causal_steps((2, 4, 4)), causal_steps((2, 2, 4)), causal_steps((2, 4, 2))
  (20, 12, 12)
  """
  if len(grid) < 3:
    return math.prod(grid)
  *batch, queries, keys = grid
  # Tile j of the keys starts at j / keys of the tokens, tile i of the queries ends at (i + 1) /
  # queries of them.
  seen = sum(j * queries < (i + 1) * keys for i in range(queries) for j in range(keys))
  return math.prod(batch) * seen
