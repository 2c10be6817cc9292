# SPDX-License-Identifier: Apache-2.0
"""Measures what a rotation costs over a copy of its input, on this device.

  python -m experiments.benchmark

Both sides run in turns in one process. Bytes are the compiler's own count, over the least that must
be moved: the input, the output and one pair of tables.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import time

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
from rich import table as rich_table

from experiments import errors
from experiments import output
import pe_jax

_SHAPE = flags.DEFINE_list('shape', ['1', '4096', '16', '64'], 'Shape of x: batch,tokens,heads,H.')
_ROUNDS = flags.DEFINE_integer('rounds', 30, 'How often each side runs.', lower_bound=1)

ROTATIONS = {'half': pe_jax.rotate_half, 'interleaved': pe_jax.rotate_interleaved}


def main(argv: Sequence[str]) -> None:
  del argv
  try:
    shape = tuple(map(int, _SHAPE.value))
  except ValueError:
    shape = ()
  if len(shape) != 4 or min(shape) < 1 or shape[-1] % 2:
    raise errors.UserError(
        f'--shape={",".join(_SHAPE.value)}: give four sizes above 0, the last of them even, as in'
        ' 1,4096,16,64'
    )
  console = output.console()
  table = rich_table.Table(title=f'RoPE on {jax.devices()[0].device_kind}, x of shape {shape}')
  for column in ('rotation', 'dtype', 'bytes / least', 'time / copy, min', 'time / copy, median'):
    table.add_column(column)
  for dtype in (jnp.float32, jnp.bfloat16):
    for name, moved, seconds, copies in measure(shape, dtype, _ROUNDS.value):
      least = seconds.min() / copies.min()
      median = np.median(seconds) / np.median(copies)
      table.add_row(name, dtype.__name__, f'{moved:.3f}', f'{least:.2f}', f'{median:.2f}')
  console.print(table)


def measure(shape: tuple[int, ...], dtype, rounds: int):
  """Yields (name, bytes over the least, seconds of each round, those of the copy) of each form."""
  x = jax.random.normal(jax.random.key(0), shape, dtype)
  positions = jnp.arange(shape[1])
  inv_freq = jnp.asarray(pe_jax.scaling.default()(width=shape[-1], base=1e4)[0], jnp.float32)
  cos, sin = pe_jax.rope_tables(positions, inv_freq)
  forms = {f'{name}, tables given': (rotate, (x, cos, sin)) for name, rotate in ROTATIONS.items()}
  for name, rotate in ROTATIONS.items():
    turn = functools.partial(pe_jax.apply_rope, rotate=rotate)
    forms[f'{name}, from positions'] = (turn, (x, positions, inv_freq))
  programs = {name: jax.jit(run).lower(*args).compile() for name, (run, args) in forms.items()}
  copy = jax.jit(lambda x: x * jnp.asarray(1.5, x.dtype)).lower(x).compile()
  times = {name: [] for name in ('copy', *forms)}
  for _ in range(rounds + 1):  # the first is to warm up
    times['copy'].append(seconds(copy, x))
    for name, (_, args) in forms.items():
      times[name].append(seconds(programs[name], *args))
  least = 2 * x.nbytes + cos.nbytes + sin.nbytes
  for name, program in programs.items():
    moved = program.cost_analysis()['bytes accessed'] / least
    yield name, moved, np.array(times[name][1:]), np.array(times['copy'][1:])


def seconds(program: Callable, *args) -> float:
  began = time.perf_counter()
  jax.block_until_ready(program(*args))
  return time.perf_counter() - began


if __name__ == '__main__':
  errors.run(main)
