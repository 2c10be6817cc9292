# SPDX-License-Identifier: Apache-2.0
"""What a program does where XLA may not split it among devices.

A Pallas kernel for a TPU is opaque to XLA: in a program that XLA partitions by itself, its lowering
raises. Within `jax.shard_map`, or on one device, it is fine. Which of the two it will be is known
when a program is lowered and not when it is traced, hence a primitive.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import batching
from jax.interpreters import mlir


def unless_partitioned(opaque: Callable, transparent: Callable, *args) -> Any:
  """Computes opaque(*args), or transparent(*args) in a program that XLA splits among devices.

  Args:
    opaque: what XLA cannot split.
    transparent: the same function of arrays, from what it can.
    *args: pytrees of arrays.
  """
  leaves, tree = jax.tree.flatten(args)

  def trace(function):
    flat = lambda *leaves: jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))
    return jax.make_jaxpr(flat)(*leaves)

  outputs = _either.bind(*leaves, opaque=trace(opaque), transparent=trace(transparent))
  return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(opaque, *args)), outputs)


_either = core.Primitive('unless_partitioned')
_either.multiple_results = True


@_either.def_impl
def _run(*leaves, opaque, transparent):
  del transparent
  return core.jaxpr_as_fun(opaque)(*leaves)


@_either.def_abstract_eval
def _shapes(*leaves, opaque, transparent):
  del leaves, opaque
  return transparent.out_avals


def _lower(context, *leaves, opaque, transparent):
  chosen = transparent if _is_partitioned(context.module_context.axis_context) else opaque
  return mlir.lower_fun(core.jaxpr_as_fun(chosen), multiple_results=True)(context, *leaves)


def _is_partitioned(axes) -> bool:
  """Whether XLA splits the program: it has several devices, and not all axes are manual."""
  devices = getattr(axes, 'num_devices', None)
  if devices is not None:
    return devices > 1
  manual = axes.manual_axes | set(axes.mesh.manual_axes)
  return bool(axes.manual_axes) and manual != set(axes.mesh.axis_names)


def _map(leaves, axes, *, opaque, transparent):
  mapped = lambda jaxpr: jax.make_jaxpr(jax.vmap(core.jaxpr_as_fun(jaxpr), in_axes=axes))(*leaves)
  outputs = _either.bind(*leaves, opaque=mapped(opaque), transparent=mapped(transparent))
  return outputs, (0,) * len(outputs)


mlir.register_lowering(_either, _lower)
batching.primitive_batchers[_either] = _map
