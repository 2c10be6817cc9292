# SPDX-License-Identifier: Apache-2.0
"""Flash attention as TPU kernels with the encoding's bias in them, forward and backward.

    the bias of the encoding                             in the kernels
    none                                                 nothing
    of the distance, and positions that count by one     windows of distances
    elementwise in the pairs                             the steps of its hook on pairs
    of the distance, else                                (blockwise)

Windows (`_flash_diagonals`) are what the bias is at the T + S - 1 distances, evaluated outside the
kernels by whatever operations it likes, as are the steps of a hook (`_flash_hook`) that see no
pairs. Whether positions count by one is known when the program runs, so it holds a form below too.

Reference: Dao, 2023, https://arxiv.org/abs/2307.08691.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels import _blockwise
from pe_jax.kernels import _flash_calls
from pe_jax.kernels._flash_diagonals import LANES
from pe_jax.kernels._flash_diagonals import lay_out
from pe_jax.kernels._flash_diagonals import Tiles
from pe_jax.kernels._flash_hook import Hook
from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import join
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import bias_by_step
from pe_jax.kernels._tile import consecutive
from pe_jax.kernels._tile import is_of_whole_distances
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask
from pe_jax.positions import expand

Array = jax.Array

_MOST_FAST_MEMORY = 96 * 2**20  # of the 128 MiB of a v5e or v6e, for the backward kernel


class _Plan(NamedTuple):
  """What is static: the passes where no kernel can do, and how kernels are run."""

  tiled: Passes
  by_distance: bool
  hook: Hook | None
  interpret: bool

  @property
  def encoding(self):
    return self.tiled.plan.encoding


def flash_tpu(*args, interpret: bool = False, **kwargs):
  """Computes attention with TPU kernels that have the bias in them; see `pe_jax.kernels`.

  The bias must be one of the distance between whole positions, as T5's is, or elementwise in the
  pairs, as FIRE's is: a kernel has no gather. The backward pass is that of blockwise where a bias
  reads coordinates that are floats, and where the gradients to all keys of a head do not fit the
  chip's fast memory. `bind(flash_tpu, interpret=True)` runs it on any machine, slowly, for tests.

  Raises:
    ValueError: what it cannot compute, see `refusal`.
  """
  call = prepare(*args, **kwargs)
  if reason := refusal(call):
    raise ValueError(f'flash_tpu cannot compute {reason}: use pe_jax.kernels.blockwise or dense.')
  return attention(call, default=passes(call, interpret=interpret))


def passes(call: Call, *, interpret: bool = False) -> Passes:
  """Makes both passes for a call that is not refused."""
  hook = _hook(call)
  hook = None if hook is None or hook.foreign else hook
  by_distance = is_of_whole_distances(call.encoding, call.operands)
  plan = _Plan(_blockwise.passes(call), by_distance, hook, interpret)
  return Passes(plan, _forward, _backward)


def refusal(call: Call) -> str | None:
  """Names what the kernels cannot honour in a call; None where they can do all."""
  encoding, mask, q, k, v = call.encoding, call.mask, call.q, call.k, call.v
  sides = call.operands.queries, call.operands.keys
  is_array = lambda coords: isinstance(coords, jax.Array) and coords.ndim == q.ndim - 2
  refused = {
      f'the logits hook of {encoding}': encoding.logits is not None,
      f'the value hook of {encoding}': encoding.value is not None,
      f'{encoding}, whose bias reads q and k': encoding.reads_content,
      'a bias of coordinates that are no array [..., T]': (
          encoding.bias is not None and not all(is_array(side.coords) for side in sides)
      ),
      'a softcap': call.operands.shared['softcap'] is not None,
      'Mask(where=...)': mask.where is not None,
      'Mask(dense=...)': mask.dense is not None,
      f'{q.dtype}, which a TPU does not have': q.dtype == jnp.float16,
      f'dtypes that differ, {q.dtype}, {k.dtype} and {v.dtype}': not q.dtype == k.dtype == v.dtype,
      f'{q.shape[-3]} queries and {k.shape[-3]} keys, which must be multiples of {LANES}': (
          q.shape[-3] % LANES or k.shape[-3] % LANES
      ),
  }
  reason = next((what for what, given in refused.items() if given), None)
  if reason is not None or is_of_whole_distances(encoding, call.operands):
    return reason
  foreign = getattr(_hook(call), 'foreign', ())
  return f"{', '.join(foreign)} in the bias hook of {encoding}" if foreign else None


def _hook(call: Call) -> Hook | None:
  return None if call.encoding.bias is None else Hook.split(call.encoding, call.operands)


# --- The two passes ------------------------------------------------------------------------------


def _forward(plan: _Plan, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  """Computes the output and the log-sum-exp, see `Passes`."""

  def kernel(bias: Callable, operands, mask):
    arrays = bias(plan, _swap_heads(operands))
    return _flash_calls.forward(operands, mask, arrays, hook=plan.hook, interpret=plan.interpret)

  def tiled(operands, mask):
    out, lse = plan.tiled.forward(plan.tiled.plan, _swap_heads(operands), mask)
    return jnp.swapaxes(out, -2, -3), jnp.swapaxes(lse, -1, -2)

  out, lse = _choose(plan, operands, kernel, tiled)(_swap_heads(operands), mask)
  return jnp.swapaxes(out, -2, -3), jnp.swapaxes(lse, -1, -2)


def _backward(plan: _Plan, residuals, cotangents) -> Operands:
  """Computes the gradients of what moves, see `Passes`."""
  moving, fixed, mask, out, lse = residuals
  by_out, by_lse = cotangents
  operands = join(moving, fixed)
  # The kernel has no gradients to coordinates, and holds those to all keys of a head.
  coords = moving.queries.coords, moving.keys.coords
  moves = plan.encoding.bias is not None and jax.tree.leaves(coords)
  if moves or _flash_calls.fast_memory(operands) > _MOST_FAST_MEMORY:
    return plan.tiled.backward(plan.tiled.plan, residuals, cotangents)
  # Of the output in float32: a row of ds sums to 0, which a rounded one would spoil for a bias.
  drop = jnp.einsum('...h,...h->...', by_out, out, precision='highest') - by_lse

  def tiled(moving, by_out, drop):
    moving, by_out = _swap_heads(moving), jnp.swapaxes(by_out, -2, -3).astype(out.dtype)
    residuals = moving, fixed, mask, out, lse
    return _swap_heads(plan.tiled.backward(plan.tiled.plan, residuals, (by_out, by_lse)))

  kernel = functools.partial(_kernel_backward, plan, fixed, mask, jnp.swapaxes(lse, -1, -2))
  by_out = jnp.swapaxes(by_out, -2, -3).astype(operands.keys.rows['v'].dtype)
  drop = jnp.swapaxes(drop, -1, -2)
  return _swap_heads(_choose(plan, operands, kernel, tiled)(_swap_heads(moving), by_out, drop))


def _swap_heads(operands: Operands) -> Operands:
  """Reorders rows [..., T, N, H] as [..., N, T, H], or back.

  The kernels take heads first. Reordered outside of `jax.lax.cond`, which keeps the layouts that it
  is given, that is free: the projections before and after write and read any order.
  """
  swap = lambda side: side._replace(
      rows=jax.tree.map(lambda x: jnp.swapaxes(x, -2, -3), side.rows)
  )
  return operands._replace(queries=swap(operands.queries), keys=swap(operands.keys))


def _choose(plan: _Plan, operands: Operands, kernel: Callable, tiled: Callable) -> Callable:
  """Returns `kernel` with the form of the bias that suits it, or `tiled` where none does."""
  if plan.encoding.bias is None:
    return functools.partial(kernel, lambda plan, operands: {})
  by_pair = functools.partial(kernel, _numbers) if plan.hook else tiled
  if not plan.by_distance:
    return by_pair
  counts_by_one = consecutive(operands.queries.coords) & consecutive(operands.keys.coords)
  by_distance = functools.partial(kernel, _windows)
  return functools.partial(jax.lax.cond, counts_by_one, by_distance, by_pair)


def _kernel_backward(plan: _Plan, fixed, mask, lse, bias: Callable, moving, by_out, drop):
  def of_shared(shared):
    return bias(plan, _swap_heads(join(moving._replace(shared=shared), fixed)))

  arrays, to_shared = jax.vjp(of_shared, moving.shared)
  grads, by_arrays = _flash_calls.backward(
      join(moving, fixed),
      mask,
      arrays,
      lse,
      by_out,
      drop,
      hook=plan.hook,
      interpret=plan.interpret,
  )
  (by_shared,) = to_shared(by_arrays)
  if by_shared['scale'] is not None:
    by_shared['scale'] += grads['scale'].astype(by_shared['scale'].dtype)
  zeros = jax.tree.map(jnp.zeros_like, moving)
  queries = zeros.queries._replace(rows=zeros.queries.rows | {'q': grads['q']})
  keys = zeros.keys._replace(rows=zeros.keys.rows | {'k': grads['k'], 'v': grads['v']})
  return Operands(queries, keys, by_shared)


# --- The forms of a bias -------------------------------------------------------------------------


def _numbers(plan: _Plan, operands: Operands) -> dict[str, Array]:
  return plan.hook.outside(plan.encoding, operands)


def _windows(plan: _Plan, operands: Operands) -> dict[str, Array]:
  """Lays out the bias of the distances, [B or 1, N or 1, blocks, min(s, t)]."""
  *batch, queries, _, _ = operands.queries.rows['q'].shape
  by_step = bias_by_step(plan.encoding, operands)
  by_step = expand(by_step, len(batch) + 2)
  if any(size > 1 for size in by_step.shape[:-2]):
    by_step = jnp.broadcast_to(by_step, (*batch, *by_step.shape[-2:]))
  by_step = by_step.reshape(-1, *by_step.shape[-2:])
  return {'windows': lay_out(by_step, Tiles(queries, operands.keys.rows['k'].shape[-3]))}
