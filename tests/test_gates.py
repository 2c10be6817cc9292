# SPDX-License-Identifier: Apache-2.0
"""What compiled programs cost: bytes, operations, temporaries. All of it is deterministic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import Mask

# --- RoPE ----------------------------------------------------------------------------------------

SHAPE = (1, 4096, 16, 64)
TABLES = 2 * 4096 * 32 * 4  # cos and sin
ROTATIONS = (pe_jax.rotate_half, pe_jax.rotate_interleaved)
each_rotation = pytest.mark.parametrize('rotate', ROTATIONS, ids=lambda fn: fn.__name__)
each_type = pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16], ids=lambda d: d.__name__)


def compiled(fn, *args):
  lowered = jax.jit(fn).lower(*args)
  program = lowered.compile()
  return lowered.as_text(), program, program.cost_analysis()['bytes accessed']


@each_rotation
@each_type
def test_a_rotation_moves_its_input_once(rotate, dtype):
  x = jax.ShapeDtypeStruct(SHAPE, dtype)
  table = jax.ShapeDtypeStruct((1, 4096, 32), jnp.float32)
  text, program, moved = compiled(rotate, x, table, table)
  least = 2 * np.prod(SHAPE) * x.dtype.itemsize + TABLES
  assert moved <= 1.02 * least
  assert program.memory_analysis().temp_size_in_bytes == 0
  assert not any(f'stablehlo.{op}' in text for op in ('gather', 'scatter', 'dot_general'))


@each_rotation
@each_type
def test_rotating_by_positions_adds_its_tables_only(rotate, dtype):
  x = jax.ShapeDtypeStruct(SHAPE, dtype)
  positions = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
  inv_freq = jax.ShapeDtypeStruct((32,), jnp.float32)
  turn = functools.partial(pe_jax.apply_rope, rotate=rotate)
  text, program, moved = compiled(turn, x, positions, inv_freq)
  least = 2 * np.prod(SHAPE) * x.dtype.itemsize + 3 * TABLES
  assert moved <= 1.02 * least
  assert not any(f'stablehlo.{op}' in text for op in ('gather', 'scatter', 'dot_general'))
  # A cosine in a fusion of x's shape would be computed again for every head.
  for fusion in program.as_text().split('\n\n'):
    assert not ('cosine(' in fusion and '4096,16' in fusion)


# --- The record costs nothing --------------------------------------------------------------------


def by_hand_rope(q, k, v, positions):
  exact = 1e4 ** (-np.arange(0, 64, 2) / 64)
  inv_freq, turns = jnp.float32(exact), pe_jax.positions.split_turns(exact)[None]
  turn = functools.partial(pe_jax.apply_rope, positions=positions, inv_freq=inv_freq, turns=turns)
  return by_hand(turn(q), turn(k), v, None)


def by_hand_alibi(q, k, v, positions):
  steps = (positions[None, :] - positions[:, None]).astype(jnp.float32)
  slopes = jnp.asarray([2.0**-h for h in range(1, 9)], jnp.float32)
  return by_hand(q, k, v, (-slopes[:, None, None] * jnp.abs(steps)[None])[None])


def by_hand(q, k, v, bias):
  logits = jnp.einsum('btnh,bsnh->bnts', q, k, preferred_element_type=jnp.float32) * 64**-0.5
  logits = logits if bias is None else logits + bias
  index = jnp.arange(q.shape[1])
  causal = (index[None, :] <= index[:, None])[None, None]
  weights = jax.nn.softmax(jnp.where(causal, logits, jnp.finfo(jnp.float32).min))
  return jnp.einsum('bnts,bsnh->btnh', weights, v, preferred_element_type=jnp.float32)


def count(fn, *args):
  compiled = jax.jit(fn).lower(*args).compile()
  lines = compiled.as_text().splitlines()
  free = ('parameter(', 'bitcast(')
  operations = [x for x in lines if ' = ' in x and not any(op in x for op in free)]
  return len(operations), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    'encoding, hand',
    [(pe_jax.rope(), by_hand_rope), (pe_jax.alibi(), by_hand_alibi)],
    ids=['rope', 'alibi'],
)
def test_the_record_costs_nothing(encoding, hand):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 128, 8, 64))
  positions = jnp.arange(128)

  def with_record(q, k, v, positions):
    options = {'encoding': encoding, 'params': {}, 'mask': Mask(causal=True)}
    return pe_jax.attend(q, k, v, positions, positions, **options)

  args = (q, k, v, positions)
  np.testing.assert_allclose(with_record(*args), hand(*args), atol=2e-5)
  ours, theirs = count(with_record, *args), count(hand, *args)
  assert ours == theirs, 'operations, temporary bytes'
