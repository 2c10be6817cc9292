# SPDX-License-Identifier: Apache-2.0
"""Faults of tables, slopes and constants that were reported in public, with the right values.

The number in the name of a test is that of the fault here, counted on from test_cases.py.

  40  sines and cosines in the wrong order, or with another exponent: allenai/allennlp #2993
  41  an odd width of the sinusoidal table: gc-os-ai/pyaptamer #526
  43  slopes of ALiBi for head counts that are no power of two: ml-explore/mlx #3071
  47  resizing a table of positions: huggingface/pytorch-image-models #2737
  53  weight decay shrinks what is not trained: extropic-ai/sparse-transformers #3
  56  a kernel that takes a bias and gives it no gradient: Dao-AILab/flash-attention #617
  86  slopes of ALiBi from the heads of one shard: bigscience-workshop/Megatron-DeepSpeed #227
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

import pe_jax
from pe_jax import Dims
from pe_jax import Mask

# --- Shapes --------------------------------------------------------------------------------------


def embed(width, position, **options):
  """What `sinusoidal` adds at one position."""
  encoding = pe_jax.sinusoidal(**options)
  return encoding.embed({}, jnp.zeros((1, width)), jnp.array([position]))[0]


def test_40_orders_and_time_scales():
  paper = [0.141120, -0.989992, 0.138798, 0.990321, 0.006463, 0.999979]
  np.testing.assert_allclose(embed(6, 3), paper, atol=1e-6)
  np.testing.assert_allclose(embed(6, 3, order='concat'), paper[::2] + paper[1::2], atol=1e-6)
  scales = pe_jax.timescale_frequencies(6)
  np.testing.assert_allclose(scales, [1, 1e-2, 1e-4])
  np.testing.assert_allclose(pe_jax.sinusoidal_frequencies(6)[-1], 2.154435e-3, rtol=1e-6)
  first, last = pe_jax.timescale_frequencies(8, min_timescale=2.0, max_timescale=50.0)[[0, -1]]
  np.testing.assert_allclose([first, last], [1 / 2, 1 / 50])
  steps = np.diff(np.log(pe_jax.sinusoidal_frequencies(256)))
  np.testing.assert_allclose(steps, -0.0719558, rtol=1e-5)


@pytest.mark.parametrize('encoding', [pe_jax.sinusoidal(), pe_jax.timing_signal()], ids=repr)
def test_40_a_row_has_half_the_width_as_squared_norm(encoding):
  rows = encoding.embed({}, jnp.zeros((5000, 8)), jnp.arange(5000))
  np.testing.assert_allclose((rows**2).sum(-1), 4, atol=1e-4)
  for k in (1, 100):
    dots = (rows[k:] * rows[:-k]).sum(-1)
    np.testing.assert_allclose(dots, np.full(dots.shape, dots[0]), atol=1e-3)


def test_41_an_odd_width_ends_with_a_sine():
  np.testing.assert_allclose(
      embed(5, 3), [0.141120, -0.989992, 0.075285, 0.997162, 0.001893], atol=1e-6
  )
  np.testing.assert_allclose(embed(1, 3), [0.141120], atol=1e-6)
  for width in (3, 7, 127):
    for order in ('interleaved', 'concat'):
      assert embed(width, 3, order=order).shape == (width,)
    row = pe_jax.timing_signal().embed({}, jnp.zeros((1, width)), jnp.array([3]))[0]
    assert row.shape == (width,) and row[-1] == 0
  with pytest.raises(ValueError, match='width=5 is odd'):
    pe_jax.sinusoidal_shift(1.0, 5)


def test_43_alibi_slopes_for_any_number_of_heads():
  eight = [2.0**-h for h in range(1, 9)]
  between = [0.707107, 0.353553, 0.176777, 0.0883883]
  expected = {
      1: [2**-8],
      2: [2**-4, 2**-8],
      3: [0.0625, 0.00390625, 0.25],
      6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
      8: eight,
      12: eight + between,
  }
  for heads, slopes in expected.items():
    np.testing.assert_allclose(pe_jax.alibi_slopes(heads), slopes, rtol=1e-5)
  forty = np.array(pe_jax.alibi_slopes(40))[[0, 31, 32, 39]]
  np.testing.assert_allclose(forty, [0.840896, 0.00390625, 0.917004, 0.272627], rtol=1e-5)


def test_43_one_slope_a_query_head():
  slopes = pe_jax.alibi().constants(Dims(model=48, heads=6, kv_heads=2))['slopes']
  assert slopes.shape == (6,)


def test_47_resizing_a_table():
  column = lambda n: jnp.arange(float(n))[:, None]
  resize = pe_jax.resize_table
  assert resize(column(8), length=4)[:, 0].tolist() == [0.5, 2.5, 4.5, 6.5]
  assert resize(column(2), length=4)[:, 0].tolist() == [0, 0.25, 0.75, 1]
  for length in (61, 115, 122):
    assert resize(column(14), length=length).shape == (length, 1)
  table = jax.random.normal(jax.random.key(0), (14, 3))
  assert (resize(table, length=14) == table).all()
  low = table.astype(jnp.bfloat16)
  want = resize(low.astype(jnp.float32), length=5).astype(jnp.bfloat16)
  assert (resize(low, length=5) == want).all()


# --- Gradients, trained and not trained -----------------------------------------------------------


def test_53_weight_decay_never_touches_constants():
  encoding = pe_jax.compose(pe_jax.rope(), pe_jax.alibi(), pe_jax.t5())
  dims = Dims(model=64, heads=4)
  params = pe_jax.assemble(encoding, encoding.init(jax.random.key(0), dims), dims)
  mask = functools.partial(pe_jax.trainable, encoding)
  update = optax.adamw(0.1, weight_decay=0.1, mask=mask)
  state, moved = update.init(params), params
  for _ in range(10):
    steps, state = update.update(jax.tree.map(jnp.zeros_like, params), state, moved)
    moved = optax.apply_updates(moved, steps)
  np.testing.assert_allclose(moved['2']['table'], params['2']['table'] * 0.904382, rtol=1e-4)
  for part, name in [('0', 'inv_freq'), ('1', 'slopes'), ('2', 'boundaries')]:
    assert (moved[part][name] == params[part][name]).all()
  assert pe_jax.parameter_count(encoding, dims) == 4 * 32


def test_56_each_bucket_collects_the_gradient_of_its_distances():
  boundaries = jnp.array(pe_jax.t5_boundaries(32, 128), jnp.float32)
  positions = jnp.arange(3)

  def total(table):
    find = pe_jax.t5_causal_buckets
    return pe_jax.t5_bias(positions, positions, table, boundaries, find=find).sum()

  assert jax.grad(total)(jnp.zeros((1, 32)))[0, :4].tolist() == [6, 2, 1, 0]


# --- Sharding ------------------------------------------------------------------------------------


def test_86_shards_slice_the_slopes_of_the_whole_model():
  def shard(heads, shards, index):
    params = pe_jax.alibi().constants(Dims(model=16 * heads, heads=heads))
    size = heads // shards
    part = slice(index * size, (index + 1) * size)
    return pe_jax.take_heads(pe_jax.alibi(), params, part)['slopes'].tolist()

  assert shard(8, 2, 1) == [2**-5, 2**-6, 2**-7, 2**-8]
  np.testing.assert_allclose(
      shard(12, 2, 1), [2**-7, 2**-8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6
  )


@pytest.mark.parametrize('mesh_shape', [(1, 8), (2, 4), (8, 1)])
@pytest.mark.parametrize('encoding', [pe_jax.alibi(), pe_jax.t5()], ids=repr)
def test_86_every_mesh_gives_the_same_output(encoding, mesh_shape):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 8, 6, 8, 4))
  dims = Dims(model=32, heads=8)
  params = pe_jax.assemble(encoding, encoding.init(jax.random.key(1), dims), dims)
  positions = jnp.arange(6)
  run = functools.partial(pe_jax.attend, encoding=encoding, mask=Mask(causal=True))
  whole = run(q, k, v, positions, positions, params=params)
  mesh = jax.make_mesh(mesh_shape, ('data', 'heads'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  by_head = {name: P('heads') if name in encoding.per_head else P() for name in params}
  rows = P('data', None, 'heads', None)

  def part(q, k, v, params):
    return run(q, k, v, positions, positions, params=params)

  sharded = jax.shard_map(part, mesh=mesh, in_specs=(rows, rows, rows, by_head), out_specs=rows)
  np.testing.assert_allclose(jax.jit(sharded)(q, k, v, params), whole, atol=1e-5)
