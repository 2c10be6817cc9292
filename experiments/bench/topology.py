# SPDX-License-Identifier: Apache-2.0
"""What the TPU's own compiler makes of attention, without a TPU: memory, and estimated cycles.

Cycles are the sum of what the compiler estimates for the operations of the optimised program, and
for Pallas kernels the bundles that it schedules times the steps of the grid that a causal mask
leaves. Where a loop turns a number of times that only the run tells, there is no sum.
"""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import importlib.util
import os
import pathlib
import shutil
import sys
from typing import Any

import jax
from jax.experimental import topologies

from experiments import errors
from experiments import parse
from experiments import sources
from experiments.bench import attention
from experiments.bench import bundles
from experiments.bench import hlo
from experiments.bench import ratios
from experiments.bench import run
from experiments.bench import store as store_lib
from experiments.bench import turns

CHIPS = {'tpu:v5e': 'v5e:2x2', 'tpu:v6e': 'v6e:2x2'}
PHASES = (attention.FORWARD, attention.BACKWARD, attention.LAYER)
_SOURCE = sources.digest(attention, bundles, hlo, sys.modules[__name__])
_OPEN = 'a loop turns a number of times that only the run tells: cycles cannot be summed'
# What libtpu asks a cloud machine for; it only compiles here.
NO_CLOUD = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
}


class Chip:
  """A TPU that exists for its compiler only, and where that compiler writes its plans."""

  def __init__(self, platform: str, dump: pathlib.Path):
    """Loads the compiler; it reads the environment now and never again.

    Raises:
      UserError: an unknown platform, or libtpu is not installed.
    """
    if platform not in CHIPS:
      raise errors.UserError(
          f'--platform={platform} is unknown: give {" or ".join(CHIPS)}, or leave it out to measure'
          ' this device'
      )
    if importlib.util.find_spec('libtpu') is None:
      raise errors.UserError(
          f"--platform={platform} needs the TPU's compiler, libtpu: pip install -e '.[tpu]'"
      )
    os.environ.update(NO_CLOUD)
    options = [os.environ.get('LIBTPU_INIT_ARGS', ''), bundles.DUMP_FLAGS.format(dump)]
    os.environ['LIBTPU_INIT_ARGS'] = ' '.join(options).strip()
    jax.config.update('jax_platforms', 'cpu')  # where constants are made
    self.name = platform
    self.dump = dump
    described = topologies.get_topology_desc(platform='tpu', topology_name=CHIPS[platform])
    self._sharding = jax.sharding.SingleDeviceSharding(described.devices[0])

  def describe(self) -> dict[str, Any]:
    """Names what the numbers hold for."""
    return {'platform': self.name, 'versions': run.versions('jax', 'jaxlib', 'libtpu')}

  def compile(self, fn: Callable, shapes: Any) -> dict[str, Any]:
    """Compiles a function for arguments of these shapes, and returns what the compiler says."""
    shutil.rmtree(self.dump, ignore_errors=True)
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._sharding)
    traced = jax.jit(fn).trace(*jax.tree.map(place, shapes))
    program = traced.lower().compile()
    optimal = program.cost_analysis().get('optimal_seconds', -1)
    found, memory = hlo.read(program.as_text()), program.memory_analysis()
    kernels = self._kernels(traced, found.kernels)
    planned = sum(kernel['bundles'] * kernel['steps'] * kernel['calls'] for kernel in kernels)
    return {
        'argument_bytes': memory.argument_size_in_bytes,
        'output_bytes': memory.output_size_in_bytes,
        'temp_bytes': memory.temp_size_in_bytes,
        'optimal_seconds': optimal if optimal > 0 else None,  # below 0 it has no estimate
        'cycles': None if found.open_loops else found.cycles + planned,
        'kernel_cycles': planned if kernels else None,
        'kernels': kernels,
        'note': _OPEN if found.open_loops else '',
    }

  def _kernels(self, traced, calls: dict[str, int]) -> list[dict[str, Any]]:
    """Lists the Pallas kernels: bundles of a step, steps that are computed, calls."""
    grid_of = dict(bundles.grids(traced.jaxpr.jaxpr))
    found = []
    for call, times in calls.items():
      name = call if call in grid_of else call.rsplit('.', 1)[0]
      found.append({
          'name': call,
          'grid': grid_of[name],
          'bundles': bundles.scheduled(self.dump, call),
          'steps': bundles.causal_steps(grid_of[name]),
          'calls': times,
      })
    return found


def comparisons(
    asked: run.Asked, chip: Chip, store: store_lib.Store, tell: Callable[[str], None]
) -> Iterator[run.Comparison]:
  """Yields attention and a layer with each encoding, as compiled for the chip."""
  for length in asked.lengths:
    shape = asked.shape(length)
    for typed, encoding in asked.encodings.items():
      for phase in PHASES:
        plans = attention.plan(typed, encoding, asked.kernels)
        rows = [_row(plan, shape, phase, chip, store, tell) for plan in plans]
        rows = ratios.with_ratios(rows)
        yield {'part': 'tpu', 'encoding': typed, 'length': length, 'phase': phase, 'rows': rows}


def _row(plan: attention.Plan, shape, phase, chip, store, tell) -> run.Row:
  identity = {
      'name': (chip.name, plan.typed, shape.length, phase, plan.kernel),
      'record': repr(plan.encoding),
      'files': parse.source_files(plan.typed),
      'shape': dataclasses.asdict(shape),
      **chip.describe(),
      'sources': _SOURCE,
  }
  if not store.has(identity):
    tell(f'{", ".join(map(str, identity["name"]))}: compiling')
  value = store.get(identity, lambda: _compile(plan, shape, phase, chip))
  return {'name': plan.name, 'role': plan.role, 'over': dict(plan.over)} | value


def _compile(plan: attention.Plan, shape, phase, chip: Chip) -> dict[str, Any]:
  try:
    attention.check(plan.encoding, shape)
    fn, arguments = attention.program(plan.encoding, plan.kernel, shape, phase)
    return chip.compile(fn, jax.eval_shape(arguments))
  except Exception as error:  # what a kernel, the compiler or a user's hook raises
    return {'reason': turns.reason(error)}
