# SPDX-License-Identifier: Apache-2.0
"""Attention by tiles is attention: blockwise against dense, values and every gradient."""

import functools
import inspect

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from tests import pairwise
from tests.factories import factories
from tests.test_masks import in_blocks_of_three

HEADS, KV_HEADS, WIDTH = 4, 2, 8
DIMS = pe_jax.Dims(model=HEADS * WIDTH, heads=HEADS, kv_heads=KV_HEADS)
each_encoding = pytest.mark.parametrize('encoding', pairwise.PAIRWISE, ids=repr)


def tiled(*tile):
  return pe_jax.bind(kernels.blockwise, tile=tile)


def draw_arrays(batch, queries, keys, dtype=jnp.float32):
  q_key, k_key, v_key = jax.random.split(jax.random.key(queries), 3)
  q = jax.random.normal(q_key, (batch, queries, HEADS, WIDTH), dtype)
  k = jax.random.normal(k_key, (batch, keys, KV_HEADS, WIDTH), dtype)
  return q, k, jax.random.normal(v_key, k.shape, dtype)


def place(encoding, draw, q_pos, k_pos):
  """Gives the coordinates of `fox` values as its gates would; leaves positions as they are."""
  if encoding.place is None:
    return q_pos, k_pos
  sums = lambda pos: -draw.uniform(0, 1, (1, HEADS, pos.shape[-1])).astype(np.float32)
  return sums(q_pos), sums(k_pos)


@functools.partial(jax.jit, static_argnames=('encoding', 'kernel'))
def run(q, k, v, coords, params, mask, softcap, *, encoding, kernel):
  """Returns the output and the gradients of a weighted sum of it."""

  def loss(q, k, v, coords, params):
    options = {'encoding': encoding, 'mask': mask, 'softcap': softcap, 'kernel': kernel}
    out = pe_jax.attend(q, k, v, *coords, params=params, **options)
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return (out.astype(jnp.float32) * weights).sum(), out

  moving = jnp.issubdtype(coords[0].dtype, jnp.inexact)
  argnums = (0, 1, 2, 4, 3) if moving else (0, 1, 2, 4)
  (_, out), grads = jax.value_and_grad(loss, argnums, has_aux=True)(q, k, v, coords, params)
  return out, grads


def agree(got, want, tolerance):
  def close(x, y):
    x, y = (np.asarray(a, np.float32) for a in (x, y))
    np.testing.assert_allclose(x, y, atol=tolerance * max(1, np.abs(y).max(initial=0)))

  jax.tree.map(close, got, want)


@st.composite
def problems(draw):
  """Draws shapes, positions and a mask; returns them with a seeded numpy generator."""
  queries, keys = draw(st.integers(1, 13)), draw(st.integers(1, 13))
  generator = np.random.default_rng(draw(st.integers(0, 99)))
  segments = [generator.integers(0, 3, (2, n)) for n in (queries, keys)]
  given = {
      'window': draw(st.sampled_from([None, 1, 4, (2, 3)])),
      'where': draw(st.sampled_from([None, in_blocks_of_three])),
  }
  if draw(st.booleans()):
    given |= {'q_segments': jnp.array(segments[0]), 'k_segments': jnp.array(segments[1])}
  if draw(st.booleans()):
    given['dense'] = jnp.array(generator.random((HEADS, queries, keys)) < 0.6)
  number = {
      'in order': lambda n: np.arange(n),
      'a row each': lambda n: np.arange(n) + np.array([[0], [70]]),
      'any': lambda n: generator.integers(0, 40, (2, n)),
      'floats': lambda n: generator.uniform(0, 40, n).astype(np.float32),
  }[draw(st.sampled_from(['in order', 'a row each', 'any', 'floats']))]
  positions = number(queries), number(keys)
  tile = draw(st.sampled_from([(1, 2), (4, 5), (5, 4), (16, 3), (2, 16)]))
  return queries, keys, tile, positions, Mask(causal=draw(st.booleans()), **given), generator


@each_encoding
@hypothesis.given(problem=problems(), softcap=st.sampled_from([None, 3.0]), half=st.booleans())
@hypothesis.settings(
    max_examples=3,  # for each encoding, as each compiles two programs
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.generate,),  # every example compiles two programs: no shrinking
)
def test_blockwise_is_dense(encoding, problem, softcap, half):
  queries, keys, tile, positions, mask, generator = problem
  if encoding.causal_only:
    mask = Mask(**{**vars(mask), 'causal': True})
  if encoding.by_distance:  # tables are read between two rows by no one
    positions = [np.round(p) for p in positions]
  dtype, tolerance = (jnp.bfloat16, 2e-2) if half else (jnp.float32, 1e-5)
  q, k, v = draw_arrays(2, queries, keys, dtype)
  coords = tuple(map(jnp.asarray, place(encoding, generator, *positions)))
  params = encoding.init(jax.random.key(1), DIMS)
  args = (q, k, v, coords, params, mask, softcap)
  want = run(*args, encoding=encoding, kernel=kernels.dense)
  agree(run(*args, encoding=encoding, kernel=tiled(*tile)), want, tolerance)


def test_every_bias_is_swept():
  swept = {repr(encoding).split('(')[0] for encoding in pairwise.PAIRWISE}
  free = {name: make for name, make in factories().items() if not needs(make)}
  biased = {name for name, make in free.items() if make().bias is not None and not make().parts}
  assert len(biased) > 8
  assert biased - {'alibi'} <= swept  # its slopes are those of alibi_learned


def needs(make):
  options = inspect.signature(make).parameters.values()
  return [option for option in options if option.default is option.empty]


@each_encoding
def test_what_is_hidden_may_be_anything(encoding):
  """Row 0 is all padding, row 1 starts with some: NaN there changes nothing, not even gradients."""
  queries = 9
  segments = jnp.array([[0] * queries, [0] * 4 + [1] * 5])
  mask = Mask(causal=True, q_segments=segments, k_segments=segments)
  q, k, v = draw_arrays(2, queries, queries)
  positions = np.arange(queries)
  coords = place(encoding, np.random.default_rng(0), positions, positions)
  params = encoding.init(jax.random.key(1), DIMS)
  hidden = (segments == 0)[..., None, None]
  options = {'encoding': encoding, 'kernel': tiled(4, 4)}
  want = run(q, k, v, tuple(map(jnp.asarray, coords)), params, mask, None, **options)
  q, k, v = (jnp.where(hidden, jnp.nan, x) for x in (q, k, v))
  got = run(q, k, v, tuple(map(jnp.asarray, coords)), params, mask, None, **options)
  jax.tree.map(np.testing.assert_array_equal, got, want)
  assert (got[0][0] == 0).all()
  assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


# --- Gradients that others lose ------------------------------------------------------------------


@pytest.mark.parametrize(
    'kernel',
    [kernels.dense, kernels.xla, tiled(4, 4), kernels.blockwise],
    ids=['dense', 'xla', 'tiles of 4', 'blockwise'],
)
def test_a_learned_bias_receives_its_gradient(kernel):  # Dao-AILab/flash-attention #617
  encoding = pe_jax.t5(buckets=4, max_distance=9)
  q, k, v = draw_arrays(1, 7, 7)
  params = encoding.init(jax.random.key(0), DIMS)
  coords = (jnp.arange(7), jnp.arange(7))
  args = (q, k, v, coords, params, Mask(causal=True), None)
  _, (*_, got) = run(*args, encoding=encoding, kernel=kernel)

  def loss_at(step):
    moved = {'table': params['table'] + step}
    out, _ = run(*args[:4], moved, *args[5:], encoding=encoding, kernel=kernels.dense)
    return (np.asarray(out, np.float64) * np.cos(np.arange(out.size)).reshape(out.shape)).sum()

  slope = np.zeros((HEADS, 4))  # by differences, no derivative of ours
  for at in np.ndindex(slope.shape):
    step = jnp.zeros_like(params['table']).at[at].set(1e-2)
    slope[at] = (loss_at(step) - loss_at(-step)) / 2e-2
  np.testing.assert_allclose(got['table'], slope, atol=2e-4)
  assert (np.abs(got['table']).max(axis=1) > 1e-3).all()


def test_positions_scale_and_softcap_are_differentiated_too():
  q, k, v = draw_arrays(1, 7, 7)
  positions = jnp.linspace(0, 9, 7)

  def loss(positions, scale, softcap, kernel):
    options = {'encoding': pe_jax.alibi(), 'params': {}, 'mask': Mask(causal=True)}
    out = pe_jax.attend(
        q, k, v, positions, positions, scale=scale, softcap=softcap, kernel=kernel, **options
    )
    return (out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)).sum()

  args = (positions, jnp.float32(0.3), jnp.float32(2))
  got, want = (jax.grad(loss, (0, 1, 2))(*args, kernel) for kernel in (tiled(3, 2), kernels.dense))
  agree(got, want, 1e-5)
  assert all(np.abs(leaf).max() > 1e-3 for leaf in got)


# --- What is refused -----------------------------------------------------------------------------


def test_what_sees_whole_rows_is_refused():
  encoding = pe_jax.cope()
  q, k, v = draw_arrays(1, 5, 5)
  params = encoding.init(jax.random.key(0), DIMS)
  coords = (jnp.arange(5), jnp.arange(5))
  with pytest.raises(ValueError, match='logits hook of cope.*kernels.dense'):
    args = (q, k, v, coords, params, Mask(causal=True), None)
    run(*args, encoding=encoding, kernel=kernels.blockwise)


def test_derivatives_other_than_the_first_are_refused():
  q, _, _ = draw_arrays(1, 5, 5)

  def loss(q):
    options = {'encoding': pe_jax.none(), 'params': {}, 'kernel': kernels.blockwise}
    return jnp.sin(pe_jax.attend(q, q, q, jnp.arange(5), jnp.arange(5), **options)).sum()

  with pytest.raises(ValueError, match='kernels.dense'):
    jax.grad(lambda q: jax.grad(loss)(q).sum())(q)
  with pytest.raises(TypeError, match='forward-mode'):
    jax.jvp(loss, (q,), (q,))


def test_a_gradient_may_be_a_constant_of_another():  # first-order MAML, sharpness-aware steps
  q = draw_arrays(1, 5, 5)[0]

  def loss(q):
    options = {'encoding': pe_jax.alibi(), 'params': {}, 'kernel': tiled(3, 2)}
    return jnp.sin(pe_jax.attend(q, q, q, jnp.arange(5), jnp.arange(5), **options)).sum()

  step = 0.1 * jax.grad(loss)(q)
  ahead = jax.grad(lambda q: loss(q - 0.1 * jax.lax.stop_gradient(jax.grad(loss)(q))))(q)
  np.testing.assert_allclose(ahead, jax.grad(loss)(q - step), atol=1e-6)


def test_nothing_is_attended_to_by_nothing():
  q, k, v = draw_arrays(2, 3, 4)
  options = {'encoding': pe_jax.alibi(), 'params': {}, 'kernel': kernels.blockwise}
  assert pe_jax.attend(q[:, :0], k, v, jnp.arange(0), jnp.arange(4), **options).size == 0
  nothing = pe_jax.attend(q, k[:, :0], v[:, :0], jnp.arange(3), jnp.arange(0), **options)
  np.testing.assert_array_equal(nothing, jnp.zeros_like(q))


def test_rows_may_be_mapped_over():
  q, k, v = draw_arrays(3, 7, 7)
  segments = jnp.array([[1] * 7, [1] * 3 + [2] * 4, [0] * 2 + [1] * 5])

  def one(q, k, v, segments):
    mask = Mask(causal=True, q_segments=segments, k_segments=segments)
    options = {'encoding': pe_jax.alibi(), 'params': {}, 'mask': mask, 'kernel': tiled(3, 2)}
    return pe_jax.attend(q, k, v, jnp.arange(7), jnp.arange(7), **options)

  def mapped(*args):
    return jax.vmap(one)(*args, segments)

  def batched(*args):
    return one(*args, segments)

  total = lambda fn: lambda *args: jnp.sin(fn(*args)).sum()
  got, want = (jax.value_and_grad(total(fn), (0, 1, 2))(q, k, v) for fn in (mapped, batched))
  agree(got, want, 1e-5)
