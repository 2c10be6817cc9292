# SPDX-License-Identifier: Apache-2.0
"""RoPE has one form a platform: each is chosen where it belongs, and all give the same numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import _rope

LAYOUTS = {'half': pe_jax.rotate_half, 'interleaved': pe_jax.rotate_interleaved}
FORMS = {
    'half': (_rope._half_by_parts, _rope._half_by_matrix),
    'interleaved': (_rope._interleaved_by_parts, _rope._interleaved_by_matrix),
}
each_layout = pytest.mark.parametrize('layout', LAYOUTS)
each_type = pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
each_form = pytest.mark.parametrize('form', [0, 1], ids=['parts', 'matrix'])

T, N, W = 5, 3, 8


def example(dtype='float32'):
  keys = jax.random.split(jax.random.key(0), 3)
  x, cotangent = jax.random.normal(keys[0], (2, T, N, W)).astype(dtype)
  cos, sin = jax.random.normal(keys[1], (2, T, 1, W // 2))
  return x, cos, sin, cotangent


def pairs(layout):
  return [(i, i + W // 2) if layout == 'half' else (2 * i, 2 * i + 1) for i in range(W // 2)]


def rotated(layout, x, cos, sin):
  """The formula, a pair of channels at a time, in float64."""
  x, cos, sin = (np.asarray(array, np.float64) for array in (x, cos, sin))
  out = np.empty_like(x)
  for i, (a, b) in enumerate(pairs(layout)):
    out[..., a] = x[..., a] * cos[..., i] - x[..., b] * sin[..., i]
    out[..., b] = x[..., b] * cos[..., i] + x[..., a] * sin[..., i]
  return out


@each_layout
@each_type
@each_form
def test_every_form_is_the_formula_rounded_once(layout, dtype, form):
  x, cos, sin, _ = example(dtype)
  out = FORMS[layout][form](x, cos, sin)
  assert out.dtype == dtype
  want = rotated(layout, x, cos, sin)
  np.testing.assert_allclose(np.float64(out), want, rtol=jnp.finfo(dtype).eps, atol=1e-6)


@each_layout
@each_type
@each_form
def test_every_form_turns_cotangents_back_and_rounds_them_once(layout, dtype, form):
  x, cos, sin, g = example(dtype)
  back = jax.vjp(FORMS[layout][form], x, cos, sin)[1](g)
  np.testing.assert_allclose(
      np.float64(back[0]), rotated(layout, g, cos, -sin), rtol=jnp.finfo(dtype).eps, atol=1e-6
  )
  x, g = np.float64(x), np.float64(g)
  for i, (a, b) in enumerate(pairs(layout)):
    want = (x[..., a] * g[..., a] + x[..., b] * g[..., b]).sum(axis=-1)
    np.testing.assert_allclose(back[1][..., 0, i], want, rtol=1e-5, atol=1e-5)
    want = (x[..., a] * g[..., b] - x[..., b] * g[..., a]).sum(axis=-1)
    np.testing.assert_allclose(back[2][..., 0, i], want, rtol=1e-5, atol=1e-5)


def dots(fn, platform, *args):
  lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,))
  return lowered.as_text().count('stablehlo.dot_general')


@each_layout
@pytest.mark.parametrize('platform, forward, both', [('cpu', 0, 0), ('cuda', 0, 0), ('tpu', 1, 2)])
def test_each_platform_gets_its_form_also_under_grad_and_vmap(layout, platform, forward, both):
  x, cos, sin, g = example()
  rotate = lambda x: LAYOUTS[layout](x, cos[:, 0], sin[:, 0])
  rotate_and_back = lambda x: (rotate(x), *jax.vjp(rotate, x)[1](g))
  assert dots(rotate, platform, x) == forward
  assert dots(jax.vmap(rotate), platform, x[None]) == forward
  assert dots(rotate_and_back, platform, x) == both


@each_layout
def test_no_form_keeps_more_than_the_tables_for_the_gradient_of_x(layout):
  x, cos, sin, _ = example()
  _, back = jax.vjp(functools.partial(LAYOUTS[layout], cos=cos[:, 0], sin=sin[:, 0]), x)
  kept = sum(leaf.size for leaf in jax.tree.leaves(back))
  assert kept <= cos.size + sin.size + 4, 'the tables, and a quarter turn'


@each_layout
def test_an_empty_batch_turns_into_an_empty_batch(layout):
  cos, sin = jnp.ones((2, T, 1, W // 2))
  assert LAYOUTS[layout](jnp.ones((0, T, N, W)), cos[:, 0], sin[:, 0]).shape == (0, T, N, W)


@each_layout
def test_the_public_rotation_is_the_same_with_and_without_jit_and_vmap(layout):
  x, cos, sin, g = example()
  rotate = lambda x: LAYOUTS[layout](x, cos[:, 0], sin[:, 0])
  want = rotated(layout, x, cos, sin)
  np.testing.assert_allclose(rotate(x), want, atol=1e-6)
  rows = jax.vmap(rotate)(jnp.stack([x, -x]))
  np.testing.assert_allclose(rows, np.stack([want, -want]), atol=1e-6)
  back = jax.vjp(rotate, x)[1](g)[0]
  np.testing.assert_allclose(back, rotated(layout, g, cos, -sin), atol=1e-6)
  _, along = jax.jvp(rotate, (x,), (g,))
  np.testing.assert_allclose(along, rotated(layout, g, cos, sin), atol=1e-6)
  with jax.disable_jit():
    np.testing.assert_allclose(rotate(x), want, atol=1e-6)
    np.testing.assert_allclose(jax.vjp(rotate, x)[1](g)[0], back, atol=1e-6)
