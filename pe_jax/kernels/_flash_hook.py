# SPDX-License-Identifier: Apache-2.0
"""The bias hook of an encoding inside a TPU's kernel.

A hook is a program of small steps. Those that see one side of the pairs only, or just parameters,
are computed outside the kernel, once a token and not once a pair, by whatever operations they like.
What they hand over are numbers of the head, of a query and of a key. The others are elementwise in
the pairs, so a kernel takes them for any part of a tile, and `jax.vjp` of them gives the cotangents
of the numbers. From there `jax.vjp` of the steps outside leads to every parameter.
"""

import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.extend import core
import jax.numpy as jnp

from pe_jax import base
from pe_jax.kernels._tile import Operands

Array = jax.Array

# What steps on pairs may be. Those that only change the shape do nothing to a number of a pair.
_SHAPES = frozenset('broadcast_in_dim reshape squeeze'.split())
_ELEMENTWISE = frozenset(
    'abs add and convert_element_type cos div eq exp ge gt integer_pow le log log1p lt max min mul '
    'ne neg not or select_n sin sqrt square sub tanh'.split()
)
_QUERIES, _KEYS = 10007, 20011  # sizes that no other axis has, to tell the arrays of a hook apart
_SIDES = {1: 'head', _QUERIES: 'queries', _KEYS: 'keys'}
_ROWS = 32  # of a tile, that are computed at a time; 128 tokens and more divide by it


@dataclasses.dataclass(frozen=True, eq=False)
class Hook:
  """A hook, split into its steps on pairs and what they read.

  Attributes:
    steps: the equations on pairs.
    numbers: the variables that they read from outside, by side.
    result: the variable that is the bias.
    places: where the outside program has each variable of `numbers`.
    foreign: names of steps that no kernel can take.
  """

  steps: tuple
  numbers: dict[str, tuple]
  result: Any
  places: dict[Any, int]
  foreign: tuple[str, ...]

  @classmethod
  def split(cls, encoding, operands: Operands) -> 'Hook':
    """Splits the bias hook of an encoding; one that does not bear other sizes is foreign."""
    try:
      return cls._split(encoding, operands)
    except Exception as error:  # whatever a user's hook raises for one head of many tokens
      return cls((), {}, None, {}, (f'{type(error).__name__} for one head and other sizes',))

  @classmethod
  def _split(cls, encoding, operands: Operands) -> 'Hook':
    params = base.take_heads(encoding, operands.shared['params'], slice(1))
    sizes = (_QUERIES, operands.queries.coords), (_KEYS, operands.keys.coords)
    tokens = [_like(coords, (size,)) for size, coords in sizes]
    program = _program(encoding, params, *tokens, operands.shared['scale']).jaxpr
    places = {x: place for place, x in enumerate(_variables(program))}
    is_pair = lambda x: x.aval.size == _QUERIES * _KEYS
    steps, foreign, numbers = [], [], {side: [] for side in _SIDES.values()}
    # Of these a kernel sums no gradients by key. The scale comes last.
    trained = {*program.invars[: len(jax.tree.leaves(params))], program.invars[-1]}

    def read(x):
      if isinstance(x, core.Literal) or is_pair(x):
        return
      side = _SIDES.get(x.aval.size)
      if side is None:
        foreign.append(f'an array of shape {x.aval.shape}')
      elif side == 'keys' and x in trained:
        foreign.append('parameters or the scale for each key')
      elif x not in numbers[side]:
        numbers[side].append(x)

    for step in program.eqns:
      if any(x in trained for x in step.invars if not isinstance(x, core.Literal)):
        trained.update(step.outvars)
      if is_pair(step.outvars[0]):
        steps.append(step)
        for x in step.invars:
          read(x)
      if any(map(is_pair, [*step.invars, *step.outvars])) and (
          step.primitive.name not in _SHAPES | _ELEMENTWISE or not is_pair(step.outvars[0])
      ):
        foreign.append(step.primitive.name)
    if any(map(is_pair, program.constvars)):
      foreign.append('a constant for each pair')
    (result,) = program.outvars
    read(result)
    numbers = {side: tuple(found) for side, found in numbers.items()}
    return cls(tuple(steps), numbers, result, places, tuple(sorted(set(foreign))))

  def outside(self, encoding, operands: Operands) -> dict[str, Array]:
    """Computes the numbers that the steps on pairs read, float32.

    Args:
      encoding: the one that was split.
      operands: of the call; their coordinates are [..., T] and [..., S].

    Returns:
      'head', shape [N, 1, F]; 'queries', [B or 1, N, F, T]; 'keys', [B or 1, 1, S, F].
    """
    queries, keys, shared = operands
    params = shared['params']
    coords = queries.coords, keys.coords
    if any(size > 1 for x in coords for size in x.shape[:-1]):
      batch = queries.rows['q'].shape[:-3]
      coords = [jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in coords]
    q_coords, k_coords = (x.reshape(-1, x.shape[-1]) for x in coords)
    axes = jax.tree_util.tree_map_with_path(
        lambda path, _: 0 if base.leaf_name(path) in encoding.per_head else None, params
    )
    split_heads = jax.tree.map(
        lambda axis, x: x if axis is None else x[:, None], axes, params, is_leaf=lambda x: x is None
    )

    def of_head(params, q_coords, k_coords):
      return self._outside(encoding, params, q_coords, k_coords, shared['scale'])

    heads = queries.rows['q'].shape[-2]
    of_row = jax.vmap(of_head, in_axes=(axes, None, None), axis_size=heads)
    numbers = jax.vmap(of_row, in_axes=(None, 0, 0))(split_heads, q_coords, k_coords)
    return {
        'head': jnp.swapaxes(numbers['head'][0], -1, -2),
        'queries': numbers['queries'],
        'keys': jnp.swapaxes(numbers['keys'][:, :1], -1, -2),  # the same for all heads
    }

  def _outside(self, encoding, params, q_coords, k_coords, scale) -> dict[str, Array]:
    """Runs the program of one head and one row of the batch, for all but the pairs."""
    program = _program(encoding, params, q_coords, k_coords, scale)
    variables = _variables(program.jaxpr)
    values = _run(program, *jax.tree.leaves((params, q_coords, k_coords, scale)))
    sizes = {'head': 1, 'queries': q_coords.shape[0], 'keys': k_coords.shape[0]}

    def stack(side):
      found = [values[variables[self.places[x]]] for x in self.numbers[side]]
      found = [jnp.asarray(x, jnp.float32).ravel() for x in found]
      return jnp.stack(found or [jnp.zeros(sizes[side])])

    return {side: stack(side) for side in sizes}  # what nobody reads of `values`, XLA leaves out

  def bias(self, refs, room) -> Array:
    """Computes the bias of a tile, [s, t], some rows at a time; `room` is of that shape."""

    def fill(n, carry):
      rows = pl.ds(n * _ROWS, _ROWS)
      room[rows] = self._pairs(*self._read(refs, rows), (_ROWS, room.shape[1]))
      return carry

    jax.lax.fori_loop(0, room.shape[0] // _ROWS, fill, 0)
    return room[...]

  def add_gradients(self, refs, room, by_bias: Array, grads):
    """Adds what a tile gives to the gradients of the numbers of a head and of its queries."""
    room[...] = by_bias

    def add(n, carry):
      rows = pl.ds(n * _ROWS, _ROWS)
      shape = _ROWS, room.shape[1]
      head, queries, keys = self._read(refs, rows)
      head = [jnp.full((1, shape[1]), number) for number in head]
      _, to_numbers = jax.vjp(lambda *x: self._pairs(*x, keys, shape), head, queries)
      for name, terms in zip(('head', 'queries'), to_numbers(room[rows])):
        for f, term in enumerate(terms):
          grads[name][f : f + 1] += term
      return carry

    jax.lax.fori_loop(0, room.shape[0] // _ROWS, add, 0)

  def _read(self, refs, rows) -> tuple[list, list, list]:
    """Reads the numbers of the head, of the queries [1, t] and of some keys [rows, 1]."""
    counts = [len(found) for found in self.numbers.values()]
    return (
        [refs['head'][0, f] for f in range(counts[0])],
        [refs['queries'][f : f + 1] for f in range(counts[1])],
        [refs['keys'][rows, f : f + 1] for f in range(counts[2])],
    )

  def _pairs(self, head: list, queries: list, keys: list, shape: tuple[int, int]) -> Array:
    """Runs the steps on pairs: keys down, queries across."""
    found = [x for side in self.numbers.values() for x in side]
    env = {x: value.astype(x.aval.dtype) for x, value in zip(found, [*head, *queries, *keys])}
    read = lambda x: jnp.asarray(x.val, x.aval.dtype) if isinstance(x, core.Literal) else env[x]
    for step in self.steps:
      values = [read(x) for x in step.invars]
      if step.primitive.name not in _SHAPES:
        run = _larger if step.primitive.name == 'max' else step.primitive.bind
        values = [run(*(jnp.broadcast_to(x, shape) for x in values), **step.params)]
      env[step.outvars[0]] = values[0]
    return jnp.broadcast_to(read(self.result), shape)


@jax.custom_jvp
def _larger(x: Array, y: Array) -> Array:
  """Is jax.lax.max, whose own derivative divides."""
  return jnp.maximum(x, y)


@_larger.defjvp
def _larger_forward(primals, tangents):
  (x, y), (by_x, by_y) = primals, tangents
  share = jnp.where(x > y, 1.0, jnp.where(x == y, 0.5, 0.0))
  return _larger(x, y), share * by_x + (1 - share) * by_y


def _program(encoding, params, q_coords, k_coords, scale) -> core.ClosedJaxpr:
  """Traces the hook for one head, without inner programs."""

  def hook(params, q_coords, k_coords, scale):
    # Such a hook reads no content: any q and k of the right shape will do.
    q, k = (jnp.zeros((x.shape[0], 1, 1)) for x in (q_coords, k_coords))
    return encoding.bias(params, q, k, q_coords, k_coords, scale)

  traced = jax.make_jaxpr(hook)(params, q_coords, k_coords, scale)
  shapes = [_like(x, x.shape) for x in traced.in_avals]
  return jax.make_jaxpr(functools.partial(_inline, traced))(*shapes)


def _like(x, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
  """Describes an array of the dtype of x that varies over a mesh as x does."""
  varies = jax.typeof(x).manual_axis_type if isinstance(x, jax.Array) else x.manual_axis_type
  return jax.ShapeDtypeStruct(shape, x.dtype, manual_axis_type=varies)


def _inline(program: core.ClosedJaxpr, *args: Array) -> list[Array]:
  """Computes what a program returns, see `_run`."""
  env = _run(program, *args)
  return [x.val if isinstance(x, core.Literal) else env[x] for x in program.jaxpr.outvars]


def _run(program: core.ClosedJaxpr, *args: Array) -> dict[Any, Array]:
  """Runs a program without calls; of a choice by platform it takes what a kernel does."""
  env = dict(zip(program.jaxpr.invars, args)) | dict(zip(program.jaxpr.constvars, program.consts))
  read = lambda x: x.val if isinstance(x, core.Literal) else env[x]
  for step in program.jaxpr.eqns:
    name, values = step.primitive.name, [read(x) for x in step.invars]
    if name == 'platform_index':
      outputs = [next(i for i, names in enumerate(step.params['platforms']) if names is None)]
    elif name == 'cond' and isinstance(values[0], int):
      outputs = _inline(step.params['branches'][values[0]], *values[1:])
    elif name == 'jit':
      outputs = _inline(step.params['jaxpr'], *values)
    else:
      params = step.primitive.get_bind_params(step.params)
      outputs = step.primitive.bind(*values, **params)
      outputs = outputs if step.primitive.multiple_results else [outputs]
    env.update(zip(step.outvars, outputs))
  return env


def _variables(jaxpr) -> list:
  """Lists the variables of a program in an order that does not depend on the shapes."""
  return [*jaxpr.invars, *jaxpr.constvars, *(x for eqn in jaxpr.eqns for x in eqn.outvars)]
