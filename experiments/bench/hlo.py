# SPDX-License-Identifier: Apache-2.0
"""Reads the text of a program that the TPU's compiler optimised: cycles, kernels, loops.

The compiler writes an estimate on every operation, that in the body of a loop for one turn. The
turns of most loops can be read off their condition, `i < 4`; those of others are known when the
program runs. Of a conditional the last branch counts, which runs where the condition is true: in
the kernels of pe_jax that is the one for positions that count by one, as they do here.
"""

from collections.abc import Iterator
import re
from typing import NamedTuple

_HEAD = re.compile(r'^(ENTRY )?%([\w.\-]+) \(.*\{$')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL = re.compile(r'%([\w.\-]+) = .*custom_call_target="tpu_custom_call"')
_WHILE = re.compile(r' while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)')
_CALLED = re.compile(
    r'(?:to_apply|calls|computation|branch_computations)=\{?((?:%[\w.\-]+(?:, )?)+)'
)
_CONSTANT = re.compile(r'%([\w.\-]+) = s32\[\]\S* constant\((\d+)\)')
_LESS = re.compile(r'ROOT .* compare\(.*%([\w.\-]+)\), direction=LT')


class Found(NamedTuple):
  """What a program is made of.

  Attributes:
    cycles: the compiler's estimates, summed over all turns of loops.
    kernels: how often each Pallas kernel is called.
    open_loops: loops whose number of turns the text does not tell; they count as one turn.
  """

  cycles: int
  kernels: dict[str, int]
  open_loops: int


def read(text: str) -> Found:
  """Reads a program.

  >>> print(read('''
  ... %body (p: s32[]) -> s32[] {
  ...   %k.1 = f32[8] custom-call(%p), custom_call_target="tpu_custom_call"
  ...   %a = f32[8] add(%p, %p), backend_config={"estimated_cycles":"7"}
  ... }
  ... %until (p: s32[]) -> pred[] {
  ...   %three = s32[] constant(3)
  ...   ROOT %c = pred[] compare(%p, %three), direction=LT
  ... }
  ... ENTRY %main (q: s32[]) -> s32[] {
  ...   %b = f32[8] add(%q, %q), backend_config={"estimated_cycles":"10"}
  ...   %w = s32[] while(%q), condition=%until, body=%body
  ... }'''))
  Found(cycles=31, kernels={'k.1': 3}, open_loops=0)
  """
  entry, bodies = _split(text)
  if not entry:
    raise ValueError('the text has no ENTRY computation: it is no HLO program.')
  cycles, kernels, open_loops = 0, {}, 0
  for line, times in _walk(entry, 1, bodies):
    cycles += times * sum(map(int, _CYCLES.findall(line)))
    if call := _KERNEL.search(line):
      kernels[call.group(1)] = kernels.get(call.group(1), 0) + times
    if loop := _WHILE.search(line):
      open_loops += _turns(bodies[loop.group(1)]) is None
  return Found(cycles, kernels, open_loops)


def _split(text: str) -> tuple[str, dict[str, list[str]]]:
  """Returns the name of the entry, and the lines of each computation."""
  entry, name, bodies = '', '', {}
  for line in text.splitlines():
    if head := _HEAD.match(line):
      name = head.group(2)
      bodies[name] = []
      entry = name if head.group(1) else entry
    elif name:
      bodies[name].append(line)
  return entry, bodies


def _walk(name: str, times: int, bodies: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
  """Yields the lines that run, and how often each does."""
  for line in bodies[name]:
    yield line, times
    if loop := _WHILE.search(line):
      yield from _walk(loop.group(2), times * (_turns(bodies[loop.group(1)]) or 1), bodies)
    for called in _CALLED.findall(line):
      names = re.findall(r'%([\w.\-]+)', called)
      for inner in names[-1:] if ' conditional(' in line else names:
        yield from _walk(inner, times, bodies)


def _turns(condition: list[str]) -> int | None:
  """Reads how often a loop turns that counts from 0 to a constant; None for all others."""
  constants = dict(found.groups() for line in condition if (found := _CONSTANT.search(line)))
  bounds = [found.group(1) for line in condition if (found := _LESS.search(line))]
  return int(constants[bounds[0]]) if bounds and bounds[0] in constants else None
