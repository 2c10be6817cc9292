# SPDX-License-Identifier: Apache-2.0
"""The two calls of the TPU's kernels: attention, and its gradients.

The backward kernel visits the tiles in the order of the forward one and computes all gradients at
once. That of a tile of queries grows over its tiles of keys; those of the keys of a head, and of
its windows of distances, stay in the chip's fast memory until the head is done.
"""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pe_jax.kernels import _flash_hook
from pe_jax.kernels import _flash_tile
from pe_jax.kernels._blockwise import LEAST
from pe_jax.kernels._flash_blocks import Bias
from pe_jax.kernels._flash_blocks import Block
from pe_jax.kernels._flash_blocks import Blocks
from pe_jax.kernels._flash_blocks import of_tile
from pe_jax.kernels._flash_diagonals import LANES
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask

Array = jax.Array

_WORKING = 2**24  # bytes of fast memory for the tiles and for what the compiler puts aside


def forward(operands: Operands, mask: Mask, bias: Bias, *, interpret: bool) -> tuple[Array, Array]:
  """Computes the output [..., T, N, H] and the log-sum-exp [..., T, N], float32."""
  blocks, width = Blocks.of(operands), operands.queries.rows['q'].shape[-1]
  tile = blocks.tiles.shape[0]
  out, lse = _run(
      functools.partial(_flash_tile.forward, **_static(operands, mask, bias)),
      blocks.visits(mask),
      of_tile(blocks, operands, mask, bias),
      [blocks.out_queries(width, jnp.float32), blocks.out_per_query()],
      grid=blocks.grid,
      scratch=[(1, tile), (1, tile), (width, tile)],
      semantics=('parallel', 'parallel', 'parallel', 'arbitrary'),
      name='pe_jax_flash',
      interpret=interpret,
  )
  return blocks.token_major(out), blocks.token_major(jnp.swapaxes(lse, -1, -2))[..., 0]


def backward(
    operands: Operands, mask: Mask, bias: Bias, out, lse, cotangents, *, interpret: bool
) -> dict[str, Array]:
  """Computes the gradients of q, k and v, and of the windows for every row and head.

  Args:
    operands, mask, bias: as for `forward`.
    out, lse: what it gave.
    cotangents: of the two.
    interpret: whether to run on any machine, slowly.

  Returns:
    'q', 'k' and 'v', of their shapes, and 'windows', shape [B, N, diagonals, 8, s + t].
  """
  by_out, by_lse = cotangents
  blocks, v = Blocks.of(operands), operands.keys.rows['v']
  # Of the output in float32: a row of ds sums to 0, which a rounded one would spoil for a bias.
  drop = jnp.einsum('...h,...h->...', by_out, out, precision='highest') - by_lse
  inputs = of_tile(blocks, operands, mask, bias) | {
      'by_out': blocks.queries(by_out.astype(v.dtype)),
      'lse': blocks.per_query(jnp.maximum(lse, LEAST)),
      'drop': blocks.per_query(drop),
  }
  grads = _run(
      functools.partial(
          _flash_tile.backward,
          **_static(operands, mask, bias),
          tiles=blocks.tiles,
          groups=blocks.groups,
      ),
      blocks.visits(mask),
      inputs,
      _gradients(blocks, operands, with_windows=bias.windows is not None),
      grid=blocks.grid,
      scratch=[(v.shape[-1], blocks.tiles.shape[0])],
      semantics=('parallel', 'arbitrary', 'arbitrary', 'arbitrary'),
      name='pe_jax_flash_backward',
      interpret=interpret,
  )
  rows = {name: blocks.token_major(grads[name]).astype(v.dtype) for name in ('q', 'k', 'v')}
  return grads | rows


def fast_memory(operands: Operands) -> int:
  """Returns the bytes of fast memory that the backward kernel asks for."""
  return _limit(_gradients(Blocks.of(operands), operands, with_windows=True))


def _gradients(blocks: Blocks, operands: Operands, *, with_windows: bool) -> dict[str, Block]:
  v = operands.keys.rows['v']
  keys = blocks.out_keys(v.shape[-1])
  grads = {'q': blocks.out_queries(v.shape[-1], v.dtype), 'k': keys, 'v': keys}
  return grads | ({'windows': blocks.out_windows()} if with_windows else {})


def _static(operands: Operands, mask: Mask, bias: Bias) -> dict[str, Any]:
  """Returns what the kernels know when they are compiled."""
  hook = bias.encoding and _flash_hook.trace(bias.encoding, operands.shared['params'])
  return {'hook': hook, 'sides': mask._sides()}


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
          dimension_semantics=semantics, vmem_limit_bytes=_limit(outputs)
      ),
      interpret=interpret,
      name=name,
  )(visits, pick(0, inputs))


def _limit(outputs: Any) -> int:
  """Returns the bytes for the blocks of some outputs, twice each as one is written back."""
  blocks = jax.tree.leaves(outputs, is_leaf=lambda x: isinstance(x, Block))
  sizes = [[size or 1 for size in block.spec.block_shape] for block in blocks]
  return _WORKING + sum(2 * 4 * math.prod(size[:-1]) * max(size[-1], LANES) for size in sizes)
