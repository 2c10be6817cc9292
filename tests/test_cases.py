# SPDX-License-Identifier: Apache-2.0
"""Faults of rotations and of precision that were reported in public, with the right values.

The number in the name of a test is that of the fault here. Laws over every encoding that grew out
of the same faults are in `pe_jax.testing`.

   1  frequencies rounded to the dtype of the model: sgl-project/sglang-jax #1472
   2  positions in bfloat16 or float16: NVIDIA/Megatron-LM #535
   6  distances of ALiBi in half precision: bigscience-workshop/Megatron-DeepSpeed #101
   8  buckets of T5 from rounded logarithms: lucidrains/x-transformers #10
  17  dynamic NTK meets keys rotated with an older base: huggingface/transformers #25104
  33  pairs of channels taken as halves or as neighbours: meta-pytorch/gpt-fast #190
  38  a partial rotation spaced by the width of the head: pie-project/pie #603
  59  whole numbers meet half precision in decoding: oarriaga/paz #415
  61  whole bases and lengths overflow: 1bit-MONSTER/1bit-MONSTER #634
  63  lengths and positions compile again: google/flax #4505
  65  large constants in a program: jax-ml/jax #14655
"""

from fractions import Fraction
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import Dims
from pe_jax import Mask

HALF = (jnp.bfloat16, jnp.float16)


def inv_freq(width, base=1e4):
  return pe_jax.scaling.default()(width=width, base=base)[0]


def turn(x, position, **options):
  """RoPE of one vector at one position."""
  return pe_jax.apply_rope(x[None, None], jnp.array([position]), inv_freq(x.size), **options)[0, 0]


# --- Precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize('dtype', [jnp.float32, *HALF])
def test_1_frequencies_are_never_rounded_to_the_model_dtype(dtype):
  encoding = pe_jax.rope()
  dims = Dims(model=128, heads=1)
  params = pe_jax.assemble(encoding, encoding.init(None, dims), dims)
  one = jnp.zeros((1, 1, 128), dtype).at[..., :64].set(1)
  out = encoding.query(params, one, jnp.array([4095]), None)[0, 0].astype(np.float32)
  channels = [0, 1, 2, 8, 16, 32]
  cos = [-0.065976, -0.742366, -0.089910, 0.815891, 0.459863, -0.994033]
  sin = [-0.997821, 0.669995, -0.995950, 0.578206, 0.887990, -0.109078]
  channels, error = np.array(channels), 5e-4 if dtype == jnp.float32 else 4e-3
  np.testing.assert_allclose(out[channels], cos, atol=error)
  np.testing.assert_allclose(out[64 + channels], sin, atol=error)


def test_1_casting_the_trained_arrays_leaves_the_frequencies():
  encoding = pe_jax.compose(pe_jax.rope(), pe_jax.t5())
  dims = Dims(model=64, heads=4)
  params = encoding.init(jax.random.key(0), dims)
  params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
  frequencies = pe_jax.assemble(encoding, params, dims)['0']['inv_freq']
  assert frequencies.dtype == jnp.float32
  np.testing.assert_allclose(frequencies, 1e4 ** (-np.arange(0, 16, 2) / 16), rtol=1e-7)


@pytest.mark.parametrize('positions', [4096, 32768])
def test_2_no_two_positions_share_a_rotation(positions):
  cos, sin = pe_jax.rope_tables(jnp.arange(positions), inv_freq(64))
  rows = np.concatenate([cos, sin], -1)
  assert len(np.unique(rows, axis=0)) == positions


@pytest.mark.parametrize('dtype', HALF)
def test_2_half_precision_positions_are_refused(dtype):
  with pytest.raises(ValueError, match='cannot count tokens'):
    pe_jax.rope_tables(jnp.arange(4).astype(dtype), inv_freq(8))
  out = pe_jax.apply_rope(jnp.ones((1, 1, 8), dtype), jnp.array([70000]), inv_freq(8))
  assert jnp.isfinite(out).all() and out.dtype == dtype


def test_6_alibi_tells_every_distance_apart():
  bias = pe_jax.alibi_bias(jnp.array([2047]), jnp.arange(2048), jnp.array([0.5], jnp.bfloat16))
  assert bias.dtype == jnp.float32 and len(np.unique(bias)) == 2048
  assert bias[0, 0, [1046, 1045, 1044, 1043]].tolist() == [-500.5, -501.0, -501.5, -502.0]


DISTANCES = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 1000]
BUCKETS = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15]


@pytest.mark.parametrize('jit', [True, False])
def test_8_t5_buckets_are_exact(jit):
  with jax.disable_jit(not jit):
    sides = jnp.array(pe_jax.t5_boundaries(16, 128), jnp.float32)
    past = pe_jax.t5_bidirectional_buckets(-jnp.array(DISTANCES, jnp.float32), sides)
    assert past.tolist() == BUCKETS
    ahead = pe_jax.t5_bidirectional_buckets(jnp.array([1.0, 8, 64, 128]), sides)
    assert ahead.tolist() == [17, 24, 30, 31]
    causal = jnp.array(pe_jax.t5_boundaries(32, 128), jnp.float32)
    distances = [0, 1, 15, 16, 18, 19, 20, 21, 31, 32, 64, 113, 127, 128, 1000]
    got = pe_jax.t5_causal_buckets(-jnp.array(distances, jnp.float32), causal)
    assert got.tolist() == [0, 1, 15, 16, 16, 17, 17, 18, 21, 21, 26, 31, 31, 31, 31]
    assert pe_jax.t5_causal_buckets(jnp.array([1.0, 50.0]), causal).tolist() == [0, 0]


@pytest.mark.parametrize('buckets, largest', [(16, 128), (32, 128), (8, 20), (3, 7), (32, 1000)])
def test_8_t5_buckets_follow_the_rule_in_whole_numbers(buckets, largest):
  exact, wide = buckets // 2, buckets - buckets // 2
  ratio = Fraction(largest, exact)

  def bucket(n):
    if n < exact:
      return n
    reached = [k for k in range(wide) if Fraction(n, exact) ** wide >= ratio**k]
    return exact + max(reached)

  distances = np.arange(2 * largest)
  boundaries = jnp.array(pe_jax.t5_boundaries(buckets, largest), jnp.float32)
  got = pe_jax.t5_causal_buckets(-jnp.array(distances, jnp.float32), boundaries)
  assert got.tolist() == [bucket(int(n)) for n in distances]


def test_the_boundaries_of_any_distance_are_found_at_once():
  # Bucket 3 of 4 starts at the smallest n with n ** 2 * 2 >= 10 ** 18 * 2 ** 2.
  assert pe_jax.t5_boundaries(4, 10**18) == (1, 2, math.isqrt(2 * 10**18 - 1) + 1)


# --- Frequencies by length -----------------------------------------------------------------------


def test_17_dynamic_ntk_turns_every_key_by_the_length_at_hand():
  rule = pe_jax.scaling.dynamic_ntk(factor=2, original_length=2048)
  for length, base in [(2048, 10000), (2049, 10009.92), (4096, 30527.74), (8192, 72195.86)]:
    got, _ = rule(width=128, base=1e4, length=jnp.float32(length))
    np.testing.assert_allclose(got, base ** (-np.arange(0, 128, 2) / 128), rtol=2e-5)


def test_17_a_stale_key_is_seen():
  rule = pe_jax.scaling.dynamic_ntk(factor=2, original_length=16)
  s = jnp.sin(jnp.arange(16.0) + 1)
  c = jnp.cos(2 * jnp.arange(16.0) + 1)

  def rotated(x, position, length):
    frequencies, _ = rule(width=16, base=1e4, length=length)
    return pe_jax.apply_rope(x[None, None], jnp.array([position]), frequencies)[0, 0]

  fresh = rotated(s, 31, 32) @ rotated(c, 5, 32)
  stale = rotated(s, 31, 32) @ rotated(c, 5, 16)
  plain = rotated(s, 31, 16) @ rotated(c, 5, 16)
  np.testing.assert_allclose([fresh, stale, plain], [-0.787193, -0.995955, 0.618660], atol=2e-5)


# --- Layouts -------------------------------------------------------------------------------------


def test_33_each_layout_turns_its_own_pairs():
  unit = jnp.eye(8)[1]
  half = turn(unit, 3)
  np.testing.assert_allclose(half[jnp.array([1, 5])], [0.955336, 0.295520], atol=1e-6)
  assert (jnp.delete(half, jnp.array([1, 5])) == 0).all()
  pairs = turn(unit, 3, rotate=pe_jax.rotate_interleaved)
  np.testing.assert_allclose(pairs[:2], [-0.141120, -0.989992], atol=1e-6)
  assert (pairs[2:] == 0).all()


def test_38_a_partial_rotation_spaces_its_own_width():
  frequencies = inv_freq(16)
  np.testing.assert_allclose(frequencies[:5], [1, 0.316228, 0.1, 0.0316228, 0.01], rtol=1e-5)
  x = jax.random.normal(jax.random.key(0), (1, 1, 64)).at[0, 0, :16].set(jnp.eye(16)[0])
  out = pe_jax.apply_rope(x, jnp.array([1000]), frequencies)[0, 0]
  np.testing.assert_allclose(out[jnp.array([0, 8])], [0.562379, 0.826880], atol=1e-5)
  assert (out[16:] == x[0, 0, 16:]).all()
  trailing = pe_jax.apply_rope(x, jnp.array([1000]), frequencies, part='trailing')[0, 0]
  assert (trailing[:48] == x[0, 0, :48]).all() and (trailing[48:] != x[0, 0, 48:]).all()


# --- Types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('length', [8, 40, 300, 5000])
def test_59_bfloat16_decoding_is_the_whole_forward_pass(length):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, length, 2, 16), jnp.bfloat16)
  positions = pe_jax.positions.from_mask(jnp.ones(length, jnp.int8))  # int8 sums would wrap
  assert positions[-1] == length - 1
  run = functools.partial(pe_jax.attend, encoding=pe_jax.rope(), params={}, mask=Mask(causal=True))
  many = min(length, 300)
  whole = run(q[:, -many:], k, v, positions[-many:], positions)[:, -1:]
  step = run(q[:, -1:], k, v, positions[-1:], positions)
  step, whole = (x.astype(np.float32) for x in (step, whole))
  np.testing.assert_allclose(step, whole, rtol=2**-7, atol=1e-3)


def test_61_whole_numbers_do_not_overflow():
  bases = [10000000, np.int32(10000000), 1e7, np.float64(1e7)]
  records = {pe_jax.rope(base=base) for base in bases}
  assert len(records) == 1
  (record,) = records
  table = record.constants(Dims(model=128, heads=1))['inv_freq']
  np.testing.assert_allclose(table[63], 1.286397e-7, rtol=1e-6)
  with pytest.raises(ValueError, match="base='1e7'"):
    pe_jax.rope(base='1e7')
  rule = pe_jax.scaling.dynamic_ntk(factor=40, original_length=163840)
  assert np.isfinite(rule(width=64, base=1e4, length=jnp.int32(500000))[0]).all()


# --- Compilation ---------------------------------------------------------------------------------


def test_63_lengths_and_positions_do_not_retrace():
  traces = []
  encoding = pe_jax.rope(scaling=pe_jax.scaling.dynamic_ntk(factor=2, original_length=4))

  @jax.jit
  def step(q, k, v, position, length, filled):
    traces.append(1)
    index = jnp.arange(32)
    mask = Mask(causal=True, q_index=position[None], k_index=index, dense=(index < filled)[None])
    return pe_jax.attend(
        q, k, v, position[None], index, encoding=encoding, params={}, mask=mask, length=length
    )

  q, k, v = jnp.ones((1, 1, 2, 8)), *jnp.ones((2, 1, 32, 2, 8))
  for position in range(20):
    step(q, k, v, jnp.int32(position), jnp.int32(20 + position), jnp.int32(position + 1))
  assert len(traces) == 1


def test_65_a_long_rotation_has_no_large_constant():
  turn_all = lambda x, p: pe_jax.apply_rope(x, p, inv_freq(64))
  x = jax.ShapeDtypeStruct((1, 131072, 1, 64), jnp.float32)
  text = jax.jit(turn_all).lower(x, jax.ShapeDtypeStruct((131072,), jnp.int32)).as_text()
  assert len(text) < 20_000
