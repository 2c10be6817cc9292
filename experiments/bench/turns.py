# SPDX-License-Identifier: Apache-2.0
"""Sides of a comparison, checked against each other and timed in turns in one process."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import time
from typing import Any

import jax
import numpy as np

Row = dict[str, Any]


class Refused(Exception):
  """A side that cannot be measured here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Ready:
  """A side that can run.

  Attributes:
    run: computes everything once and returns when it is done.
    facts: what the compiler says of it, such as {'temp_bytes': 0}.
    outputs: turns what `run` returns into the arrays that `like` is compared by.
    note: what a reader has to know of its numbers.
  """

  run: Callable[[], Any]
  outputs: Callable[[Any], Sequence[np.ndarray]]
  facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
  note: str = ''


@dataclasses.dataclass(frozen=True)
class Side:
  """One of the things that are compared.

  Attributes:
    name: how the tables call it, unique in its comparison.
    role: what it is, such as 'kernel' or 'peer'.
    make: prepares it. May raise anything; the message becomes the reason of its row.
    over: what it is divided by, {label: name of a side}.
    like: name of an earlier side whose outputs it must have.
  """

  name: str
  role: str
  make: Callable[[], Ready]
  over: Mapping[str, str] = dataclasses.field(default_factory=dict)
  like: str | None = None


def compiled(fn: Callable, *args, outputs: Callable = lambda out: [out], note: str = '') -> Ready:
  """Compiles a function of JAX for these arguments."""
  program = jax.jit(fn).lower(*args).compile()
  memory, cost = program.memory_analysis(), program.cost_analysis() or {}
  facts = {
      'temp_bytes': memory.temp_size_in_bytes,
      'argument_bytes': memory.argument_size_in_bytes,
      'output_bytes': memory.output_size_in_bytes,
      'bytes_accessed': cost.get('bytes accessed'),
  }
  return Ready(
      run=lambda: jax.block_until_ready(program(*args)),
      outputs=lambda out: [np.asarray(x, np.float32) for x in outputs(out)],
      facts=facts,
      note=note,
  )


def measure(sides: Sequence[Side], *, rounds: int, tolerance: float) -> list[Row]:
  """Runs all sides in turns, A B A B, and returns a row for each, in their order.

  A row has `seconds` of each round, without the first one, which is to warm up; or the `reason`
  why there are none.

  Args:
    sides: what is compared.
    rounds: how often each runs.
    tolerance: by how much outputs may differ from those of `like`; relative to what is above 1.
  """
  rows = {
      side.name: {'name': side.name, 'role': side.role, 'over': dict(side.over)} for side in sides
  }
  ready, outputs = {}, {}
  for side in sides:
    try:
      made = side.make()
      found = made.outputs(made.run())
      if side.like is not None:
        _check(found, outputs.get(side.like), side.like, tolerance)
    except Exception as error:  # what a kernel, another library or a user's hook raises
      rows[side.name]['reason'] = reason(error)
      continue
    outputs[side.name] = found
    ready[side.name] = made
    rows[side.name] |= dict(made.facts) | {'note': made.note, 'seconds': []}
  for turn in range(rounds + 1):
    for name, made in ready.items():
      took = seconds(made.run)
      if turn:
        rows[name]['seconds'].append(took)
  return list(rows.values())


def seconds(run: Callable[[], Any]) -> float:
  """Measures one run."""
  began = time.perf_counter()
  run()
  return time.perf_counter() - began


def reason(error: Exception) -> str:
  """Says in a line why a side could not be measured."""
  if isinstance(error, Refused):
    return str(error)
  if isinstance(error, ModuleNotFoundError) and error.name:
    return f"{error.name.split('.')[0]} is not installed: pip install -e '.[peers]'"
  line = (str(error).strip() or 'without a message').splitlines()[0][:300]
  return line if isinstance(error, ValueError) else f'{type(error).__name__}: {line}'


def _check(found, expected, like: str, tolerance: float) -> None:
  """Refuses outputs that are not those of another side, so that nothing else is timed."""
  if expected is None:
    raise Refused(f'{like} did not run, so nothing says whether this computes the same')
  for mine, theirs in zip(found, expected, strict=True):
    if mine.shape != theirs.shape:
      raise Refused(f'gives shape {mine.shape}, and {like} {theirs.shape}: not timed')
    worst = float((np.abs(mine - theirs) / np.maximum(1, np.abs(theirs))).max())
    if not worst <= tolerance:  # also where it is NaN
      raise Refused(f'differs from {like} by {worst:.2g}, more than {tolerance:g}: not timed')
