# SPDX-License-Identifier: Apache-2.0
"""The record: equal by value, named after its call, put together and taken apart."""

import dataclasses
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import bind
from pe_jax import compose
from pe_jax import Dims
from pe_jax import Encoding
from pe_jax import Mask
from pe_jax import with_positions

DIMS = Dims(model=32, heads=4)


def scaled(x, *, factor, steps: int = 1, sides: tuple[int, ...] = ()):
  return x * factor**steps + sum(sides)


# --- bind ----------------------------------------------------------------------------------------


def test_bind_is_equal_by_value():
  a, b = bind(scaled, factor=2, sides=[1, 2]), bind(scaled, sides=(1, 2), factor=np.float32(2))
  assert a == b and hash(a) == hash(b) and repr(a) == repr(b) == 'scaled(factor=2.0, sides=(1, 2))'
  assert a != bind(scaled, factor=3, sides=(1, 2)) and a != bind(scaled, factor=2)
  assert pickle.loads(pickle.dumps(a)) == a
  assert a(10) == 23.0


def test_bind_keeps_whole_numbers_where_the_function_says_so():
  bound = dict(bind(scaled, factor=np.int64(3), steps=np.int32(2)).keywords)
  assert isinstance(bound['factor'], float) and isinstance(bound['steps'], int)
  with pytest.raises(ValueError, match='steps=1.5 must be a whole number'):
    bind(scaled, factor=1, steps=1.5)


def test_bind_adds_to_a_bind():
  assert bind(bind(scaled, factor=2), steps=3) == bind(scaled, factor=2, steps=3)
  assert bind(bind(scaled, factor=2), factor=5) == bind(scaled, factor=5)


@pytest.mark.parametrize(
    'value, said', [(jnp.ones(2), 'an array'), (np.ones(2), 'an array'), ({}, 'does not hash')]
)
def test_bind_refuses_what_is_not_a_value(value, said):
  with pytest.raises(ValueError, match=said):
    bind(scaled, factor=value)
  with pytest.raises(ValueError, match="no argument 'facto'"):
    bind(scaled, facto=1)


def test_a_bound_function_does_not_retrace():
  traces = []

  def run(x, fn):
    traces.append(fn)
    return fn(x)

  jitted = jax.jit(run, static_argnums=1)
  for factor in (2, 2.0, np.float64(2)):
    jitted(1.0, bind(scaled, factor=factor))
  assert len(traces) == 1


# --- Names ---------------------------------------------------------------------------------------

NAMES = {
    'rope(base=10000.0)': pe_jax.rope(),
    "rope(base=500000.0, layout='interleaved', width=8)": pe_jax.rope(
        base=5e5, layout='interleaved', width=8
    ),
    'alibi()': pe_jax.alibi(),
    'alibi(slopes=(1.0, 0.5))': pe_jax.alibi(slopes=[1, 0.5]),
    't5(buckets=32, max_distance=128)': pe_jax.t5(),
    'learned(length=8, offset=0)': pe_jax.learned(length=8),
    'compose(rope(base=10000.0), alibi())': compose(pe_jax.rope(), pe_jax.alibi()),
    'rope(base=10000.0, scaling=dynamic_ntk(factor=2.0, original_length=64.0))': pe_jax.rope(
        scaling=pe_jax.scaling.dynamic_ntk(factor=2, original_length=64)
    ),
}


@pytest.mark.parametrize('name', NAMES)
def test_a_record_is_named_after_its_call(name):
  record = NAMES[name]
  assert repr(record) == name
  assert eval(name, {**vars(pe_jax.scaling), **vars(pe_jax)}) == record
  assert pickle.loads(pickle.dumps(record)) == record


def test_equal_arguments_give_equal_records():
  assert len({pe_jax.rope(), pe_jax.rope(base=10000), pe_jax.rope(base=np.float32(1e4))}) == 1
  assert len({pe_jax.rope(), pe_jax.rope(base=5e5), pe_jax.rope(layout='interleaved')}) == 3


def test_a_factory_names_the_arguments_it_takes():
  with pytest.raises(ValueError, match=r"rope: .*'bse'.*base: float = 10000.0"):
    pe_jax.rope(bse=1)
  with pytest.raises(ValueError, match='width=7 must be even'):
    pe_jax.rope(width=7)
  with pytest.raises(ValueError, match='length=0 must be a finite number above 0'):
    pe_jax.learned(length=0)
  with pytest.raises(ValueError, match='base=inf must be a finite number above 0'):
    pe_jax.rope(base=float('inf'))


def nothing_at_all(params, x, coords):
  return x


def test_two_sites_are_two_encodings():
  with pytest.raises(ValueError, match='compose'):
    Encoding(name='both', embed=nothing_at_all, bias=nothing_at_all)


# --- Sizes ---------------------------------------------------------------------------------------


def test_dims_fill_in_what_is_not_given():
  assert Dims(64, 4) == Dims(model=64, heads=4, kv_heads=4, head_dim=16)


@pytest.mark.parametrize(
    'sizes, said',
    [
        ({'model': 30, 'heads': 4}, 'model=30 does not divide into heads=4'),
        ({'model': 32, 'heads': 4, 'kv_heads': 3}, 'heads=4 is not a multiple of kv_heads=3'),
        ({'model': 32, 'heads': 0, 'head_dim': 8}, 'heads=0 must be a positive integer'),
        ({'model': 32, 'heads': 0}, 'heads=0 must be a positive integer'),
        ({'model': '32', 'heads': 4}, "model='32' must be a positive integer"),
        ({'model': 32.0, 'heads': 4, 'head_dim': 8}, 'model=32.0 must be a positive integer'),
    ],
)
def test_dims_that_do_not_fit_are_named(sizes, said):
  with pytest.raises(ValueError, match=said):
    Dims(**sizes)


# --- Arrays --------------------------------------------------------------------------------------


def test_given_arrays_win_over_constants():
  inv_freq = jnp.full(4, 0.5)
  merged = pe_jax.assemble(pe_jax.rope(), {'inv_freq': inv_freq}, DIMS)
  assert (merged['inv_freq'] == 0.5).all() and merged['attention_factor'] == 1
  both = compose(pe_jax.rope(), pe_jax.t5())
  params = both.init(jax.random.key(0), DIMS)
  merged = pe_jax.assemble(both, {**params, '0': {'inv_freq': inv_freq}}, DIMS)
  assert (merged['0']['inv_freq'] == 0.5).all()
  assert (merged['1']['table'] == params['1']['table']).all()


def test_missing_and_unknown_arrays_are_named():
  both = compose(pe_jax.rope(), pe_jax.t5())
  with pytest.raises(ValueError, match=r"misses the trained arrays \['1/table'\]"):
    pe_jax.assemble(both, {'0': {}, '1': {}}, DIMS)
  with pytest.raises(ValueError, match=r"has no arrays \['slope'\]"):
    pe_jax.assemble(pe_jax.alibi(), {'slope': jnp.ones(4)}, DIMS)


@pytest.mark.parametrize(
    'encoding, said',
    [
        (pe_jax.rope(width=998), 'width=998 is more than head_dim=8'),
        (pe_jax.on_heads(pe_jax.rope(), heads=(7,)), 'heads=(7,) of 4'),
    ],
)
def test_sizes_that_do_not_fit_are_named_although_an_array_is_given(encoding, said):
  with pytest.raises(ValueError, match=re.escape(said)):
    pe_jax.assemble(encoding, {'inv_freq': jnp.ones(4)}, DIMS)


def test_arrays_of_the_whole_model_are_complete_for_a_shard():
  encoding = pe_jax.on_heads(pe_jax.rope(), heads=(2, 3))
  whole = pe_jax.assemble(encoding, {}, DIMS)
  shard = pe_jax.take_heads(encoding, whole, slice(2, 4))
  assert pe_jax.assemble(encoding, shard, Dims(32, 2, 1, 8)) is shard
  incomplete = {name: leaf for name, leaf in shard.items() if name != 'on_heads'}
  with pytest.raises(ValueError, match='choose heads below 2'):
    pe_jax.assemble(encoding, incomplete, Dims(32, 2, 1, 8))


def test_a_base_can_be_swept_and_differentiated():
  q = k = v = jax.random.normal(jax.random.key(0), (1, 8, 4, 8))
  positions = jnp.arange(8)

  def total(base):
    params = {'inv_freq': pe_jax.scaling.inverse_frequencies(8, base)}
    return pe_jax.attend(
        q, k, v, positions, positions, encoding=pe_jax.rope(), params=params
    )[0, 3].sum()

  bases = jnp.array([100.0, 1e4])
  swept = jax.vmap(total)(bases)
  np.testing.assert_allclose(swept, [total(base) for base in bases], rtol=1e-5)
  step = 0.5
  slope = (total(bases[0] + step) - total(bases[0] - step)) / (2 * step)
  np.testing.assert_allclose(jax.grad(total)(bases[0]), slope, rtol=2e-2)


# --- Several at once -----------------------------------------------------------------------------


def inputs():
  q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 6, 4, 8))
  return q, k, v, jnp.arange(6)


def test_a_composition_adds_biases_and_chains_rotations():
  q, k, v, positions = inputs()
  t5 = pe_jax.t5(buckets=4, max_distance=8)
  both = compose(pe_jax.rope(), t5, pe_jax.alibi())
  params = both.init(jax.random.key(2), DIMS)
  got = pe_jax.attention_weights(q, k, v, positions, positions, encoding=both, params=params)

  inv_freq = 1e4 ** (-np.arange(0, 8, 2) / 8)
  turned = [pe_jax.apply_rope(x, positions, jnp.asarray(inv_freq, jnp.float32)) for x in (q, k)]
  logits = np.einsum('btnh,bsnh->bnts', *turned) / 8**0.5
  steps = np.arange(6)[None, :] - np.arange(6)[:, None]
  bucket = np.where(steps >= 0, 0, np.array([0, 1, 2, 2, 3, 3])[np.abs(steps)])
  table = np.asarray(params['1']['table'])
  logits = logits + table[:, bucket] - 0.25 ** np.arange(1, 5)[:, None, None] * np.abs(steps)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  np.testing.assert_allclose(got, weights / weights.sum(-1, keepdims=True), atol=2e-6)


def test_a_composition_of_compositions_is_flat_to_its_sites():
  record = compose(pe_jax.sinusoidal(), compose(pe_jax.learned(length=4), pe_jax.rope()))
  on_embedding, in_attention = pe_jax.sites(record)
  assert on_embedding == compose(pe_jax.sinusoidal(), pe_jax.learned(length=4))
  assert in_attention == pe_jax.rope()
  assert pe_jax.sites(pe_jax.alibi()) == (pe_jax.none(), pe_jax.alibi())
  assert record.max_length == 4 and record.absolute and not record.relative


def test_parts_without_place_keep_the_positions():
  fox = compose(pe_jax.rope(), pe_jax.fox())
  params = pe_jax.assemble(fox, fox.init(jax.random.key(0), DIMS), DIMS)
  x = jax.random.normal(jax.random.key(3), (2, 6, 32))
  positions, ones = jnp.broadcast_to(jnp.arange(6), (2, 6)), jnp.ones((2, 6), jnp.int32)
  carry = pe_jax.initial_carry(fox, DIMS, (2,))
  coords, after = fox.place(params, x, positions, ones, carry)
  assert (coords[0] == positions).all() and coords[1].shape == (2, 4, 6)
  assert jax.tree.structure(after) == jax.tree.structure(carry)
  q, k, v, _ = inputs()
  out = pe_jax.attend(
      q, k, v, coords, coords, encoding=fox, params=params, mask=Mask(causal=True)
  )
  moved = (coords[0] + 100, coords[1])
  again = pe_jax.attend(q, k, v, moved, moved, encoding=fox, params=params, mask=Mask(causal=True))
  np.testing.assert_allclose(out, again, atol=1e-5)


@pytest.mark.parametrize('parts', [(), (pe_jax.rope,), (1,)])
def test_compose_refuses_what_is_no_encoding(parts):
  with pytest.raises(ValueError, match='one or more encodings'):
    compose(*parts)


# --- Other positions -----------------------------------------------------------------------------


def test_interpolated_positions_are_interpolated_frequencies():
  q, k, v, positions = inputs()
  other = with_positions(pe_jax.rope(), bind(pe_jax.positions.interpolate, factor=4))
  rule = pe_jax.rope(scaling=pe_jax.scaling.linear(factor=4))
  out = [
      pe_jax.attend(q, k, v, positions, positions, encoding=encoding, params={})
      for encoding in (other, rule)
  ]
  np.testing.assert_allclose(*out, atol=1e-5)
  assert not other.relative and pickle.loads(pickle.dumps(other)) == other


def test_claims_follow_the_parts():
  both = compose(pe_jax.rope(), pe_jax.fox(), pe_jax.shaw())
  names = [field.name for field in dataclasses.fields(Encoding) if field.type == 'bool']
  claims = [name for name in names if getattr(both, name)]
  assert claims == ['relative', 'causal_only', 'order_dependent', 'reads_content']
  assert both.per_head == ('1/kernel', '1/bias')
  params = pe_jax.assemble(both, both.init(jax.random.key(0), DIMS), DIMS)
  half = pe_jax.take_heads(both, params, slice(0, 2))
  assert half['1']['kernel'].shape == (2, 32)
  assert half['2']['keys'].shape == params['2']['keys'].shape
