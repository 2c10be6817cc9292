# SPDX-License-Identifier: Apache-2.0
"""Laws of gradients: finite everywhere, and none that is lost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attend
from pe_jax.base import assemble
from pe_jax.base import leaf_name
from pe_jax.masks import Mask
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import run_hooks
from pe_jax.testing._run import run_place
from pe_jax.testing._subject import Subject


def _weigh(outputs) -> jax.Array:
  """Sums all outputs with random weights, as a loss would; softmax would hide constants."""
  total = jnp.zeros(())
  for i, leaf in enumerate(jax.tree.leaves(outputs)):
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      weights = np.random.default_rng(i).normal(size=leaf.shape).astype(np.float32)
      total += jnp.sum(leaf.astype(jnp.float32) * weights)
  return total


@functools.partial(jax.jit, static_argnames=('encoding', 'dims'))
@functools.partial(jax.grad, allow_int=True)
def _of_hooks(given, tokens, segments, carry, *, encoding, dims):
  """Differentiates every hook, after `place`, for trained arrays, x, q and k."""
  params = assemble(encoding, given['params'], dims)
  coords, _ = run_place(params, given['x'], tokens.positions, segments, carry, encoding=encoding)
  tokens = tokens._replace(
      x=given['x'], q=given['q'], k=given['k'], q_coords=coords, k_coords=coords
  )
  return _weigh([run_hooks(params, tokens, encoding=encoding), coords])


def _gradients(subject: Subject, positions: np.ndarray, dtype=jnp.float32):
  tokens = subject.tokens(positions, dtype=dtype)
  given = {'params': subject.trained, 'x': tokens.x, 'q': tokens.q, 'k': tokens.k}
  segments, carry = np.ones(positions.shape, np.int32), subject.carry(len(positions))
  gradients = _of_hooks(
      given, tokens, segments, carry, encoding=subject.encoding, dims=subject.dims
  )
  return jax.tree.map(np.asarray, gradients)


def _check_finite(gradients, when: str, **given):
  for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]:
    bad = np.argwhere(~np.isfinite(leaf.astype(np.float64)))
    if bad.size:
      at = tuple(int(i) for i in bad[0])
      raise Violation(
          f'the gradient for {leaf_name(path)} is {leaf[at]} {when}, at {list(at)}', **given
      )


def law_gradients_finite(subject: Subject):
  """Gradients are finite: at distance 0, for one token, far out, in every dtype"""
  positions = subject.positions
  for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    name = jnp.dtype(dtype).name
    _check_finite(_gradients(subject, positions, dtype), 'at generic positions', dtype=name)
    same = np.full_like(positions, min(3, subject.limit - 1))
    _check_finite(_gradients(subject, same, dtype), 'where all distances are 0', dtype=name)
    _check_finite(_gradients(subject, same * 0, dtype), 'where all positions are 0', dtype=name)
  _check_finite(_gradients(subject, positions[:, :1] * 0), 'for one token', positions=[0])


def law_gradients_reach(subject: Subject):
  """Every trained array gets a gradient"""
  if not jax.tree.leaves(subject.trained):
    raise NotApplicable('nothing is trained')
  gradients = _gradients(subject, subject.positions)['params']
  for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]:
    if not np.any(leaf):
      raise Violation(f'the gradient for {leaf_name(path)} is 0 everywhere')


@functools.partial(jax.jit, static_argnames=('encoding', 'kernel'))
@jax.grad
def _of_attend(given, tokens, dense, *, encoding, kernel):
  """Differentiates attention for q, k, v and the trained arrays."""
  out = attend(
      given['q'],
      given['k'],
      given['v'],
      tokens.q_coords,
      tokens.k_coords,
      encoding=encoding,
      params=given['params'],
      mask=Mask(causal=True, dense=dense),
      length=tokens.length,
      kernel=kernel,
  )
  return _weigh(out)


def law_empty_gradients(subject: Subject):
  """A query that sees nothing, and a key that nobody sees, have zero gradients; all are finite"""
  tokens = subject.tokens()
  dense = np.ones((1, 1, subject.size, subject.size), bool)
  dense[:, :, 0], dense[..., -1] = False, False
  # What is hidden may be NaN, as cache slots that were never written are.
  v = np.random.default_rng(5).normal(size=tokens.k.shape).astype(np.float32)
  k = np.asarray(tokens.k).copy()
  k[:, -1], v[:, -1] = np.nan, np.nan
  given = {'q': tokens.q, 'k': k, 'v': v, 'params': subject.trained}
  with refusals(subject.kernel):
    gradients = _of_attend(
        given, tokens, dense, encoding=subject.encoding, kernel=subject.kernel
    )
  gradients = jax.tree.map(np.asarray, gradients)
  _check_finite(gradients, 'beside an empty row and a hidden NaN')
  if gradients['q'][:, 0].any() or gradients['k'][:, -1].any() or gradients['v'][:, -1].any():
    raise Violation('an empty query or a hidden key has a gradient')
