# SPDX-License-Identifier: Apache-2.0
"""A whole benchmark on this device: one comparison after the other, each kept as it is finished."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import importlib.metadata
import os
import time
from typing import Any

import jax

from experiments import errors
from experiments import parse
from experiments import sources
from experiments.bench import attention
from experiments.bench import peers
from experiments.bench import ratios
from experiments.bench import rotation
from experiments.bench import store as store_lib
from experiments.bench import turns
import pe_jax

ATTENTION, ROTATION = 'attention', 'rotation'
PARTS = (ATTENTION, ROTATION)
_SOURCE = sources.digest(attention, peers, rotation, turns)  # now: what is imported is what runs
_TOLERANCE = {'float32': 1e-4, 'bfloat16': 2e-2, 'float16': 1e-2}
DTYPES = tuple(_TOLERANCE)

Row = turns.Row
Comparison = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """What the user asks for.

  Attributes:
    encodings: by what was typed.
    kernels: names of `attention.kernel_names`, the default and the reference among them.
    lengths: tokens.
    batch, heads, head_dim, dtype: of q, k and v.
    rounds: how often each side runs.
    parts: some of PARTS.
    peers: whether other libraries run too.
  """

  encodings: Mapping[str, pe_jax.Encoding]
  kernels: tuple[str, ...]
  lengths: tuple[int, ...]
  batch: int
  heads: int
  head_dim: int
  dtype: str
  rounds: int
  parts: tuple[str, ...] = PARTS
  peers: bool = True

  def shape(self, length: int) -> attention.Shape:
    return attention.Shape(self.batch, length, self.heads, self.head_dim, self.dtype)

  def describe(self) -> dict[str, Any]:
    """Returns the settings as JSON holds them."""
    fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
    return fields | {'encodings': {t: repr(e) for t, e in self.encodings.items()}}


def check(asked: Asked) -> None:
  """Raises a UserError for what cannot be measured."""
  if not asked.parts or not set(asked.parts) <= set(PARTS):
    raise errors.UserError(f'--parts={",".join(asked.parts)} cannot be: give {" or ".join(PARTS)}')
  if not asked.lengths:
    raise errors.UserError('--lengths is empty: give numbers of tokens, as in 512,2048')
  if ROTATION in asked.parts and asked.head_dim % 2:
    raise errors.UserError(
        f'--head_dim={asked.head_dim} cannot be: a rotation needs an even number of channels; give'
        ' one, or --parts=attention'
    )


def versions(*libraries: str) -> dict[str, str]:
  return {name: importlib.metadata.version(name) for name in libraries}


def machine() -> dict[str, Any]:
  """Names what the numbers hold for: versions, device and cores."""
  return {
      'versions': versions('jax', 'jaxlib', 'numpy'),
      'device': jax.devices()[0].device_kind,
      'cores': len(os.sched_getaffinity(0)),
  }


def comparisons(
    asked: Asked, store: store_lib.Store, tell: Callable[[str], None]
) -> Iterator[Comparison]:
  """Yields every comparison, measured now or earlier, with its rows."""
  for title, identity, sides in _planned(asked):
    said = ', '.join(str(word) for word in identity['name'])
    kept = store.has(identity)
    began = time.monotonic()
    tell(f'{said}: measured earlier, kept' if kept else f'{said}: measuring')
    tolerance = _tolerance(asked, title['part'], title['length'])
    measure = functools.partial(turns.measure, rounds=asked.rounds, tolerance=tolerance)
    rows = store.get(identity, lambda sides=sides, measure=measure: measure(sides()))
    if not kept:
      tell(f'{said}: {len(rows)} sides in {time.monotonic() - began:.0f} s')
    yield {**title, 'rows': ratios.with_ratios(rows)}


def _tolerance(asked: Asked, part: str, length: int) -> float:
  """By how much sides may differ that compute the same."""
  exact = jax.devices()[0].platform == 'cpu'  # elsewhere, products of float32 are rounded
  allowed = _TOLERANCE[asked.dtype if exact else 'bfloat16']
  # Angles of `length` radians, of which libraries round the frequency and the product to float32.
  return allowed + (length * 2**-21 if part == ROTATION else 0)


def _planned(asked: Asked) -> Iterator[tuple[dict, dict, Callable[[], list[turns.Side]]]]:
  """Yields (title, all that determines the numbers, what makes the sides) of each comparison."""
  shared = {
      **machine(),
      'sources': _SOURCE,
      'rounds': asked.rounds,
      'peers': peers.versions() if asked.peers else None,
  }
  for length in asked.lengths if ATTENTION in asked.parts else ():
    for typed, encoding in asked.encodings.items():
      for phase in (attention.FORWARD, attention.BACKWARD):
        identity = {
            'name': (typed, length, phase),
            'record': repr(encoding),
            'files': parse.source_files(typed),
            'shape': dataclasses.asdict(asked.shape(length)),
            'kernels': asked.kernels,
            **shared,
        }
        title = {'part': ATTENTION, 'encoding': typed, 'length': length, 'phase': phase}
        make = lambda t=typed, e=encoding, n=length, p=phase: _attention(asked, t, e, n, p)
        yield title, identity, make
  for length in asked.lengths if ROTATION in asked.parts else ():
    shape = asked.shape(length)
    identity = {
        'name': (ROTATION, length, attention.FORWARD),
        'shape': dataclasses.asdict(shape),
        **shared,
    }
    title = {'part': ROTATION, 'encoding': '', 'length': length, 'phase': attention.FORWARD}
    yield title, identity, lambda s=shape: rotation.sides(s, with_peers=asked.peers)


def _attention(asked: Asked, typed, encoding, length, phase) -> list[turns.Side]:
  shape = asked.shape(length)
  made = attention.sides(attention.plan(typed, encoding, asked.kernels), shape, phase)
  return made + (peers.sides(encoding, shape, phase) if asked.peers else [])
