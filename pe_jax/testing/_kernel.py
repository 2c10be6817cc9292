# SPDX-License-Identifier: Apache-2.0
"""The law of kernels: whatever computes attention, it is the same attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.base import assemble
from pe_jax.base import leaf_name
from pe_jax.kernels import dense
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import ROUNDING
from pe_jax.testing._run import run_layer
from pe_jax.testing._subject import Subject

# Gradients to logits cancel within a row. A parameter that weighs them by the distance, as a slope
# does, keeps their rounding times distances of hundreds, with any kernel.
_CANCELLED = 1e-3


@functools.partial(jax.jit, static_argnames=('encoding', 'dims', 'kernel'))
def _differentiate(trained, weights, row, direction, *, encoding, dims, kernel):
  """Computes a layer, and the gradient of its product with `direction`."""

  def loss(trained, weights, x):
    params = assemble(encoding, trained, dims)
    run = functools.partial(run_layer, encoding=encoding, dims=dims, kernel=kernel)
    out = run(params, weights, row._replace(x=x))
    return jnp.sum(out * direction), out

  gradients, out = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(trained, weights, row.x)
  return {'attend': out, **dict(zip(('params', 'weights', 'x'), gradients))}


def law_kernel(subject: Subject):
  """The kernel gives what the dense one gives, and the same gradients"""
  if subject.kernel is None:
    raise NotApplicable('no kernel is given')
  d, row = subject.dims, subject.row()
  shape = (*row.x.shape[:2], d.heads, d.head_dim)
  direction = np.random.default_rng(7).normal(size=shape).astype(np.float32)
  run = functools.partial(
      _differentiate,
      subject.trained,
      subject.weights,
      row,
      direction,
      encoding=subject.encoding,
      dims=d,
  )
  with refusals(subject.kernel):
    got = run(kernel=subject.kernel)
  want = jax.tree_util.tree_flatten_with_path(run(kernel=dense))[0]
  for (path, expected), own in zip(want, jax.tree.leaves(got)):
    name = leaf_name(path)
    name = name if name == 'attend' else f'the gradient for {name}'
    compare(
        name,
        np.asarray(own),
        np.asarray(expected),
        'of this kernel, against the dense one',
        tolerance=_CANCELLED if path[0].key == 'params' else ROUNDING,
    )
