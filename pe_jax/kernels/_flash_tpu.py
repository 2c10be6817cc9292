# SPDX-License-Identifier: Apache-2.0
"""Flash attention as a TPU kernel that calls the encoding's own `bias` in every tile.

The forward pass is one Pallas kernel: the online softmax of `_blockwise`, with a bias that never
leaves the chip's fast memory. The backward pass is `_blockwise`'s, with every parameter's gradient.
"""

import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pe_jax import base
from pe_jax.kernels import _blockwise
from pe_jax.kernels._flash_tile import foreign_primitives
from pe_jax.kernels._flash_tile import kernel
from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask
from pe_jax.positions import expand

Array = jax.Array

_SUBLANES, _LANES = 8, 128  # of a TPU's registers; a tile is a multiple of the lanes


class _Plan(NamedTuple):
  """What is static: the encoding, whose backward pass is blockwise, and how the kernel is run."""

  tiled: Passes
  interpret: bool

  @property
  def encoding(self):
    return self.tiled.plan.encoding


def flash_tpu(*args, interpret: bool = False, **kwargs):
  """Computes attention with a TPU kernel that has the bias in it; see `pe_jax.kernels`.

  The bias hook must be elementwise in the positions and the parameters, as ALiBi's is: a kernel
  has no gather. `bind(flash_tpu, interpret=True)` runs it on any machine, slowly, for tests.

  Raises:
    ValueError: what it cannot compute, see `refusal`.
  """
  call = prepare(*args, **kwargs)
  if reason := refusal(call):
    raise ValueError(f'flash_tpu cannot compute {reason}: use pe_jax.kernels.blockwise or dense.')
  return attention(call, default=passes(call, interpret=interpret))


def passes(call: Call, *, interpret: bool = False) -> Passes:
  """Makes both passes for a call that is not refused."""
  return Passes(_Plan(_blockwise.passes(call), interpret), _forward, _backward)


def refusal(call: Call) -> str | None:
  """Names what the kernel cannot honour in a call; None where it can do all."""
  encoding, mask, q, k = call.encoding, call.mask, call.q, call.k
  q_coords, k_coords = call.operands.queries.coords, call.operands.keys.coords
  shared, (queries, keys) = call.operands.shared, (q.shape[-3], k.shape[-3])
  is_array = lambda coords: isinstance(coords, jax.Array) and coords.ndim == q.ndim - 2
  refused = {
      f'the logits hook of {encoding}': encoding.logits is not None,
      f'the value hook of {encoding}': encoding.value is not None,
      f'{encoding}, whose bias reads q and k': encoding.reads_content,
      'coordinates that are no array [..., T]': not (is_array(q_coords) and is_array(k_coords)),
      'a softcap': shared['softcap'] is not None,
      f'{call.q.dtype}, which a TPU does not have': call.q.dtype == jnp.float16,
      'Mask(where=...)': mask.where is not None,
      'Mask(dense=...)': mask.dense is not None,
      f'{queries} queries and {keys} keys, which must be multiples of {_LANES}': (
          queries % _LANES or keys % _LANES
      ),
  }
  reason = next((what for what, given in refused.items() if given), None)
  if reason is None:
    names = foreign_primitives(encoding, shared['params'], q, k, q_coords, k_coords)
    reason = f"{', '.join(names)} in the bias hook of {encoding}" if names else None
  return reason


def _backward(plan: _Plan, residuals, cotangents):
  tiled = plan.tiled
  return tiled.backward(tiled.plan, residuals, cotangents)


# --- What the kernel reads, and where ------------------------------------------------------------


def _forward(plan: _Plan, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  """Runs the kernel over the grid (row of the batch, head, tile of queries, tile of keys)."""
  q, k, v = operands.queries.rows['q'], operands.keys.rows['k'], operands.keys.rows['v']
  *batch, queries, heads, width = q.shape
  keys, groups = k.shape[-3], heads // k.shape[-2]
  q_tile, k_tile = _tile(queries), _tile(keys)
  q_index, k_index = mask._indices(queries, keys)
  of_queries = {'coords': operands.queries.coords, 'index': q_index, 'segments': mask.q_segments}
  of_keys = {'coords': operands.keys.coords, 'index': k_index, 'segments': mask.k_segments}
  rows = functools.partial(pl.BlockSpec, (None, None, q_tile, width))
  columns = pl.BlockSpec(
      (None, None, k_tile, width), lambda b, n, i, j, _: (b, jax.lax.div(n, groups), j, 0)
  )
  inputs = {
      'q': (_head_major(q), rows(lambda b, n, i, j, _: (b, n, i, 0))),
      'k': (_head_major(k), columns),
      'v': (_head_major(v), columns),
      'of_queries': jax.tree.map(functools.partial(_down, batch, q_tile), of_queries),
      'of_keys': jax.tree.map(functools.partial(_across, batch, k_tile), of_keys),
      'params': jax.tree_util.tree_map_with_path(
          functools.partial(_parameter, plan.encoding), operands.shared['params']
      ),
      'scale': (
          jnp.asarray(operands.shared['scale'], jnp.float32).reshape(1, 1),
          pl.BlockSpec(memory_space=pltpu.SMEM),
      ),
  }
  is_pair = lambda x: isinstance(x, tuple)
  arrays = jax.tree.map(lambda pair: pair[0], inputs, is_leaf=is_pair)
  specs = jax.tree.map(lambda pair: pair[1], inputs, is_leaf=is_pair)
  shapes = {name: jnp.shape(leaf) for name, leaf in _named(operands.shared['params']).items()}
  flat = arrays['q'].shape
  # They vary over a mesh as q does.
  result = functools.partial(
      jax.ShapeDtypeStruct, dtype=jnp.float32, manual_axis_type=jax.typeof(q).manual_axis_type
  )
  out, lse = pl.pallas_call(
      functools.partial(
          kernel, encoding=plan.encoding, mask=_without_arrays(mask), shapes=shapes
      ),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1,
          grid=(flat[0], heads, queries // q_tile, keys // k_tile),
          in_specs=[specs],
          out_specs=[
              rows(lambda b, n, i, j, _: (b, n, i, 0)),
              pl.BlockSpec((None, None, q_tile, _LANES), lambda b, n, i, j, _: (b, n, i, 0)),
          ],
          scratch_shapes=[
              pltpu.VMEM((q_tile, _LANES), jnp.float32),
              pltpu.VMEM((q_tile, _LANES), jnp.float32),
              pltpu.VMEM((q_tile, width), jnp.float32),
          ],
      ),
      out_shape=[
          result(flat),  # as the backward pass reads it
          result((*flat[:-1], _LANES)),
      ],
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=('parallel', 'parallel', 'parallel', 'arbitrary')
      ),
      interpret=plan.interpret,
      name='pe_jax_flash',
  )(mask.reached(queries, keys, q_tile, k_tile).astype(jnp.int32), arrays)
  unflatten = lambda x: jnp.swapaxes(x.reshape(*batch, *x.shape[1:]), -2, -3)
  return unflatten(out), unflatten(lse[..., :1])[..., 0]


def _without_arrays(mask: Mask) -> Mask:
  """Returns the mask without its arrays, which the kernel reads by tile."""
  arrays = ('q_segments', 'k_segments', 'q_index', 'k_index', 'dense')
  return dataclasses.replace(mask, **dict.fromkeys(arrays))


def _tile(tokens: int) -> int:
  return next(size for size in (4 * _LANES, 2 * _LANES, _LANES) if tokens % size == 0)


def _head_major(x: Array) -> Array:
  """Reorders [..., T, N, H] as [B, N, T, H]."""
  x = jnp.swapaxes(x, -2, -3)
  return x.reshape(-1, *x.shape[-3:])


def _flatten(batch: list[int], x: Array) -> Array:
  """Merges the batch axes of [..., T] into one; an array that rows share keeps an axis of 1."""
  x = expand(x, len(batch) + 1)
  lead = batch if any(size > 1 for size in x.shape[:-1]) else [1] * len(batch)
  return jnp.broadcast_to(x, (*lead, x.shape[-1])).reshape(-1, x.shape[-1])


def _down(batch: list[int], tile: int, x: Array) -> tuple[Array, Any]:
  """Lays numbers of the queries along sublanes, as a kernel reads them for the rows of a tile."""
  x = _flatten(batch, x)
  shared = x.shape[0] == 1
  spec = pl.BlockSpec((None, tile, _LANES), lambda b, n, i, j, _: (0 if shared else b, i, 0))
  return jnp.broadcast_to(x[..., None], (*x.shape, _LANES)), spec


def _across(batch: list[int], tile: int, x: Array) -> tuple[Array, Any]:
  """Lays numbers of the keys along lanes, as a kernel reads them for the columns of a tile."""
  x = _flatten(batch, x)
  shared = x.shape[0] == 1
  spec = pl.BlockSpec((None, _SUBLANES, tile), lambda b, n, i, j, _: (0 if shared else b, 0, j))
  return jnp.broadcast_to(x[:, None], (x.shape[0], _SUBLANES, x.shape[1])), spec


def _parameter(encoding, path, leaf: Array) -> tuple[Array, Any]:
  """Gives a tile all of a leaf, or what belongs to its head."""
  if base.leaf_name(path) in encoding.per_head:
    leaf = leaf.reshape(leaf.shape[0], 1, -1)
    return leaf, pl.BlockSpec((None, 1, leaf.shape[-1]), lambda b, n, i, j, _: (n, 0, 0))
  leaf = leaf.reshape(1, -1)
  return leaf, pl.BlockSpec(leaf.shape, lambda b, n, i, j, _: (0, 0))


def _named(params) -> dict[str, Array]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return {base.leaf_name(path): leaf for path, leaf in leaves}
