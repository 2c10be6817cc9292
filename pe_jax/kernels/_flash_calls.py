# SPDX-License-Identifier: Apache-2.0
"""The two calls of the TPU's kernels: attention, and its gradients.

The backward kernel visits the tiles in the order of the forward one and computes all gradients at
once. That of a tile of queries grows over its tiles of keys; those of the keys of a head, and of
its windows of distances, stay in the chip's fast memory until the head is done.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pe_jax.kernels import _flash_tile
from pe_jax.kernels._blockwise import LEAST
from pe_jax.kernels._flash_blocks import Block
from pe_jax.kernels._flash_blocks import Blocks
from pe_jax.kernels._flash_blocks import of_tile
from pe_jax.kernels._flash_diagonals import LANES
from pe_jax.kernels._flash_hook import Hook
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask

Array = jax.Array

_WORKING = 2**24  # bytes of fast memory for the tiles and for what the compiler puts aside


def forward(
    operands: Operands, mask: Mask, bias: dict[str, Array], *, hook: Hook | None, interpret: bool
) -> tuple[Array, Array]:
  """Computes the output [..., N, T, H] and the log-sum-exp [..., N, T], float32.

  Args:
    operands, mask: of the call, but with heads before tokens: q is [..., N, T, H].
    bias: {} for none; {'windows'} as `lay_out` gives them, [B or 1, N or 1, blocks, min(s, t)]; or
      the numbers of `Hook.outside`, for `hook`.
    hook: the bias hook of the encoding, if a kernel can take it.
    interpret: whether to run on any machine, slowly.
  """
  blocks, width = Blocks.of(operands), operands.queries.rows['q'].shape[-1]
  tile = blocks.tiles.shape[0]
  out, lse = _run(
      functools.partial(_flash_tile.forward, hook=hook, sides=mask.sides(), tiles=blocks.tiles),
      blocks.visits(mask),
      of_tile(blocks, operands, mask, bias),
      [blocks.out_queries(width, jnp.float32), blocks.out_per_query()],
      grid=blocks.grid,
      scratch=[(1, tile), (1, tile), (width, tile), *_room(blocks, bias)],
      semantics=('parallel', 'parallel', 'parallel', 'arbitrary'),
      name=f'pe_jax_flash_{_form(bias)}',
      interpret=interpret,
  )
  return blocks.split_batch(out), blocks.split_batch(lse)[..., 0, :]


def backward(
    operands: Operands,
    mask: Mask,
    bias: dict[str, Array],
    lse: Array,
    by_out: Array,
    drop: Array,
    *,
    hook: Hook | None,
    interpret: bool,
) -> tuple[dict[str, Array], dict[str, Array]]:
  """Computes the gradients of 'q', 'k', 'v' and 'scale', and those of the arrays of the bias.

  Args:
    operands, mask, bias: as for `forward`.
    lse: what it gave.
    by_out: the cotangent of the output, [..., N, T, H], of the dtype of v.
    drop: what every cotangent of a weight is lowered by, [..., N, T].
    hook, interpret: as for `forward`.
  """
  blocks, v = Blocks.of(operands), operands.keys.rows['v']
  inputs = of_tile(blocks, operands, mask, bias) | {
      'by_out': blocks.queries(by_out),
      'lse': blocks.per_query(jnp.maximum(lse, LEAST)),
      'drop': blocks.per_query(drop),
  }
  grads = _run(
      functools.partial(
          _flash_tile.backward,
          hook=hook,
          sides=mask.sides(),
          tiles=blocks.tiles,
          groups=blocks.groups,
      ),
      blocks.visits(mask),
      inputs,
      _gradients(blocks, operands, bias),
      grid=blocks.grid,
      scratch=[(v.shape[-1], blocks.tiles.shape[0]), *_sums(blocks, v), *_room(blocks, bias)],
      semantics=('parallel', 'arbitrary', 'arbitrary', 'arbitrary'),
      name=f'pe_jax_flash_{_form(bias)}_backward',
      interpret=interpret,
  )
  rows = {name: blocks.split_batch(grads[name]) for name in ('q', 'k', 'v')}
  by_bias = {name: _sum_shared(name, grads, x) for name, x in bias.items()}
  return rows | {'scale': grads['scale'].sum()}, by_bias


def _sum_shared(name: str, grads: dict[str, Array], x: Array) -> Array:
  """Sums a gradient over the rows and heads that share x."""
  if name not in grads:  # of the keys' coordinates
    return jnp.zeros_like(x)
  if name == 'head':
    return grads[name].sum(axis=(0, 3))[:, None, :]
  axes = [axis for axis in (0, 1) if x.shape[axis] == 1]
  return grads[name].sum(axis=axes, keepdims=True)


def fast_memory(operands: Operands) -> int:
  """Returns the bytes of fast memory that the gradients to keys take."""
  blocks, v = Blocks.of(operands), operands.keys.rows['v']
  return _limit([blocks.out_keys(v.shape[-1], v.dtype)] * 2, _sums(blocks, v))


def _gradients(blocks: Blocks, operands: Operands, bias: dict[str, Array]) -> dict[str, Block]:
  v = operands.keys.rows['v']
  keys = blocks.out_keys(v.shape[-1], v.dtype)
  grads = {'q': blocks.out_queries(v.shape[-1], v.dtype), 'k': keys, 'v': keys}
  grads['scale'] = blocks.out_per_query()
  if 'windows' in bias:
    grads['windows'] = blocks.out_windows()
  if 'head' in bias:
    grads |= blocks.out_numbers(bias)
  return grads


def _form(bias: dict[str, Array]) -> str:
  """Names where the bias comes from, for profiles."""
  return 'distance' if 'windows' in bias else 'pair' if 'head' in bias else 'plain'


def _sums(blocks: Blocks, v: Array) -> list[tuple[int, int]]:
  """Returns the shapes of the sums for all keys of a head, of 'k' and of 'v'."""
  return [(blocks.tiles.keys, v.shape[-1])] * 2


def _room(blocks: Blocks, bias: dict[str, Array]) -> list[tuple[int, int]]:
  """Returns the shape of what a hook needs for a tile, if there is one."""
  return [] if 'head' not in bias else [blocks.tiles.shape[::-1]]


def _run(kernel: Callable, visits, inputs, outputs, *, grid, scratch, semantics, name, interpret):
  """Calls a kernel on blocks; they are written before the grid takes other ones."""
  pick = lambda field, tree: jax.tree.map(
      lambda block: block[field], tree, is_leaf=lambda x: isinstance(x, Block)
  )
  return pl.pallas_call(
      kernel,
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1,
          grid=grid,
          in_specs=[pick(1, inputs)],
          out_specs=pick(1, outputs),
          scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
      ),
      out_shape=pick(0, outputs),
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=semantics, vmem_limit_bytes=_limit(outputs, scratch)
      ),
      interpret=interpret,
      name=name,
  )(visits, pick(0, inputs))


def _limit(outputs: Any, scratch: list[tuple[int, int]]) -> int:
  """Returns the bytes for sums, float32, and outputs: two blocks each, as one is written back."""
  blocks = jax.tree.leaves(outputs, is_leaf=lambda x: isinstance(x, Block))
  shapes = [[size or 1 for size in block.spec.block_shape] for block in blocks]
  written = [2 * block.array.dtype.itemsize * _size(x) for block, x in zip(blocks, shapes)]
  return _WORKING + sum(written) + sum(4 * _size(shape) for shape in scratch)


def _size(shape: Sequence[int]) -> int:
  """Returns how many numbers a block takes: its rows fill registers."""
  return math.prod(shape[:-1]) * max(shape[-1], LANES)
