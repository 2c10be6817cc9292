# SPDX-License-Identifier: Apache-2.0
"""Wrong encodings, one defect each, and the law that must flag each of them.

Those with a system's name re-create what was found in public code.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import kernels
from pe_jax import positions as at
from tests import references

DIMS = pe_jax.Dims(model=64, heads=4, kv_heads=2, head_dim=16)


class Mutant(NamedTuple):
  law: str  # that must flag it
  factory: Callable
  options: dict = {}  # of `check`


MUTANTS: dict[str, Mutant] = {}


def mutant(law: str, **options):
  """Adds a factory to the table, under the law that must flag it."""

  def add(factory):
    MUTANTS[factory.__name__] = Mutant(law, factory, options)
    return factory

  return add


def record(**fields) -> pe_jax.Encoding:
  return pe_jax.Encoding(name=fields.pop('name', 'mutant'), **fields)


def turn(x, angle):
  """Rotates pairs (i, i + H / 2) by angles [..., T, H / 2]."""
  return pe_jax.rotate_half(x, jnp.cos(angle), jnp.sin(angle))


def frequencies(x, base=1e4):
  return jnp.asarray(base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]), jnp.float32)


def penalty(q_pos, k_pos, slopes):
  return pe_jax.alibi_bias(q_pos, k_pos, slopes)


def four_slopes(dims):
  return {'slopes': jnp.asarray(pe_jax.alibi_slopes(dims.heads), jnp.float32)}


def biased(bias, **claims):
  claims = {'constants': four_slopes, 'per_head': ('slopes',), **claims}
  return record(bias=bias, **claims)


# --- 7. Nothing is remembered --------------------------------------------------------------------

CACHE = {}


def _cached_turn(params, x, positions, length, *, base):
  del params, length
  w = CACHE.setdefault(x.shape[-1], base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
  return turn(x, at.phases(positions, w))


@mutant('options')
def equinox_cache_without_the_base(*, base=1e4):
  """Row 1: a table cached by width, whatever the base."""
  hook = pe_jax.bind(_cached_turn, base=base)
  return record(query=hook, key=hook)


LONGEST = {'seen': 0}


def _turn_by_longest(params, x, positions, length):
  del params, length
  LONGEST['seen'] = max(LONGEST['seen'], x.shape[-3])
  return turn(x, at.phases(positions, frequencies(x) * 8 / LONGEST['seen']))


@mutant('pure')
def transformers_ntk_remembers_the_longest():
  """Row 7: the base follows the longest input seen so far."""
  return record(query=_turn_by_longest, key=_turn_by_longest)


def _keeps_a_tracer(params, x, positions, length):
  del params, length
  return turn(x, CACHE.setdefault('angle', at.phases(positions, frequencies(x))))


@mutant('pure')
def keeps_a_tracer():
  return record(query=_keeps_a_tracer)


# --- 4, 10. Precision ----------------------------------------------------------------------------


def _half_positions(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions.astype(x.dtype).astype(jnp.float32), frequencies(x)))


@mutant('told_apart')
def rotary_torch_positions_in_the_dtype():
  """Row 2: bfloat16 counts to 256."""
  return record(query=_half_positions, key=_half_positions)


def _bf16_positions(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions.astype(jnp.bfloat16).astype(jnp.float32), frequencies(x)))


@mutant('relative')
def bf16_positions_always():
  return record(query=_bf16_positions, key=_bf16_positions, relative=True)


def _half_frequencies(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x).astype(x.dtype)))


@mutant('half_precision')
def half_frequencies():
  return record(query=_half_frequencies, key=_half_frequencies, relative=True)


def _float32_out(params, x, positions, length):
  del params, length
  return turn(x.astype(jnp.float32), at.phases(positions, frequencies(x)))


@mutant('shapes')
def rotation_promotes():
  return record(query=_float32_out, key=_float32_out)


def _bf16_bias(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(jnp.bfloat16)


@mutant('shapes')
def bf16_bias():
  return biased(_bf16_bias)


def _half_distances(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(q.dtype).astype(jnp.float32)


@mutant('half_precision')
def half_distances():
  return biased(_half_distances)


def _always_bf16(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(jnp.bfloat16).astype(jnp.float32)


@mutant('reference', reference=references.ALIBI)
def falcon_bf16_penalty():
  return biased(_always_bf16)


def _overflows(params, q, k, q_pos, k_pos, scale):
  whole = jax.tree.map(
      lambda p: (p.astype(jnp.int32) * 3000).astype(jnp.float32) / 3000, (q_pos, k_pos)
  )
  return penalty(*whole, params['slopes'])


@mutant('far')
def positions_overflow():
  return biased(_overflows, relative=True)


# --- 1. Positions are data -----------------------------------------------------------------------


def _counts(params, q, k, q_pos, k_pos, scale):
  return penalty(jnp.arange(q.shape[-3])[None], jnp.arange(k.shape[-3])[None], params['slopes'])


@mutant('tiles')
def bias_from_arange():
  return biased(_counts)


def _outer(params, x, positions):
  del params
  angle = jnp.outer(positions, frequencies(x))
  return x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(x.shape)


@mutant('per_row')
def x_transformers_breaks_on_rows():
  """Row 4: crashes on anything but shared positions."""
  return record(embed=_row_of_one, absolute=True)


def _row_of_one(params, x, positions):
  return _outer(params, x, positions if positions.ndim == 1 else positions.reshape(x.shape[:1]))


def _needs_integers(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions | 0, frequencies(x)))


@mutant('float_positions')
def integers_only():
  return record(query=_needs_integers)


def _by_largest(params, x, positions, length):
  del params, length
  longest = jnp.max(positions, axis=-1, keepdims=True) + 1
  return turn(x, at.phases(positions / longest, frequencies(x)))


@mutant('decode')
def stale_base():
  """Keys turn by the length so far, so those that are cached keep an old one."""
  return record(query=_by_largest, key=_by_largest)


@mutant('token_local')
def normalized_by_the_largest_position():
  return record(query=_by_largest, key=_by_largest)


def _differs_by_trace(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x, 1e4 if at.is_concrete(x) else 1e3)))


@mutant('jit')
def compiled_differently():
  return record(query=_differs_by_trace)


def _mixes_rows(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x))) - 0.1 * x.mean(0, keepdims=True)


@mutant('vmap')
def mixes_rows():
  return record(query=_mixes_rows)


# --- 2. Pairwise, by head ------------------------------------------------------------------------


def _swapped(params, q, k, q_pos, k_pos, scale):
  return penalty(k_pos, q_pos, params['slopes'])


@mutant('tiles')
def deberta_swapped_arguments():
  """Row 13: right as long as there are as many queries as keys."""
  return biased(_swapped)


def _nearest_first(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return bias - bias.max(axis=-1, keepdims=True)


@mutant('tiles')
def subtracts_the_largest():
  return biased(_nearest_first)


def _local_slopes(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, jnp.asarray(pe_jax.alibi_slopes(q.shape[-2])))


@mutant('heads')
def slopes_from_local_heads():
  return record(bias=_local_slopes)


@mutant('sharded')
def megatron_slopes_of_a_shard():
  return record(bias=_local_slopes)


def _penalty(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes'])


@mutant('heads')
def per_head_not_named():
  return record(bias=_penalty, constants=four_slopes)


def _gain(key, dims):
  return {'gain': jax.random.normal(key, (dims.heads,))}


def _first_gains(params, k, positions, length):
  gain = params['gain'][: k.shape[-2]]
  return k * at.expand(gain[:, None], k.ndim).astype(k.dtype)


@mutant('grouped')
def gains_of_the_wrong_heads():
  return record(init=_gain, key=_first_gains, per_head=('gain',))


def tiled_heads(q, k, v, *args, **kwargs):
  tile = lambda x: jnp.tile(x, (1,) * (x.ndim - 2) + (q.shape[-2] // x.shape[-2], 1))
  return kernels.dense(q, tile(k), tile(v), *args, **kwargs)


MUTANTS['kernel_tiles_key_heads'] = Mutant('grouped', pe_jax.rope, {'kernel': tiled_heads})


def unbiased_steps(q, k, *args, encoding, **kwargs):
  if q.shape[-3] == 1:
    encoding = dataclasses.replace(encoding, bias=None)
  return kernels.dense(q, k, *args, encoding=encoding, **kwargs)


MUTANTS['kernel_drops_the_bias_in_decoding'] = Mutant(
    'decode', pe_jax.alibi, {'kernel': unbiased_steps}
)


def _nan_rows(q, *args, **kwargs):
  """Divides queries by their norm, which is 0 where `attend` has silenced them."""
  norm = jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True))
  return kernels.dense(q / norm, *args, **kwargs)


def frozen_coords(q, k, v, q_coords, k_coords, **kwargs):
  return kernels.dense(q, k, v, *jax.lax.stop_gradient((q_coords, k_coords)), **kwargs)


MUTANTS['kernel_trains_no_gate'] = Mutant('kernel', pe_jax.fox, {'kernel': frozen_coords})


MUTANTS['kernel_gives_nan_for_empty_rows'] = Mutant(
    'empty_gradients', pe_jax.alibi, {'kernel': _nan_rows}
)


def leaky_weights(*args, **kwargs):
  out, lse = kernels.dense(*args, **kwargs)
  return out * 0.999, lse


MUTANTS['kernel_does_not_normalize'] = Mutant(
    'constant_value', pe_jax.none, {'kernel': leaky_weights}
)


def _reads_scale(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']) / scale


@mutant('scale')
def bias_before_the_scale():
  return biased(_reads_scale)


def _table(key, dims):
  return {'table': jax.random.normal(key, (dims.heads, 32))}


def _t5_times_root(params, q, k, q_pos, k_pos, scale):
  boundaries = jnp.asarray(pe_jax.t5_boundaries(32, 128), jnp.float32)
  bias = pe_jax.t5_bias(q_pos, k_pos, params['table'], boundaries, find=pe_jax.t5_causal_buckets)
  return bias * math.sqrt(q.shape[-1])


@mutant('reference', reference=references.T5)
def x_transformers_t5_times_root():
  """Row 17: the bias is multiplied by sqrt(head_dim)."""
  return record(init=_table, bias=_t5_times_root, per_head=('table',))


def _best_query(params, logits, q, k, q_pos, k_pos, mask):
  return logits - logits.max(axis=-2, keepdims=True)


@mutant('rows')
def logits_across_queries():
  return record(logits=_best_query)


def _squares(params, weights, q_pos, k_pos):
  return jnp.einsum('...nts->...tn', weights**2)[..., None] * jnp.ones((1, 1, 1, DIMS.head_dim))


@mutant('value_linear')
def squares_the_weights():
  return record(value=_squares)


# --- Formulas ------------------------------------------------------------------------------------


def _geometric(dims):
  return {'slopes': jnp.asarray([2 ** (-8 * (h + 1) / dims.heads) for h in range(dims.heads)])}


@mutant('reference', reference=references.ALIBI, dims=pe_jax.Dims(96, 6, 2, 16))
def attention_gym_geometric_slopes():
  """Row 10: one progression for any number of heads."""
  return biased(_penalty, constants=_geometric)


def _signed(params, q, k, q_pos, k_pos, scale):
  slopes = at.expand(params['slopes'][:, None, None], q.ndim)
  return slopes * at.distance(q_pos, k_pos)[..., None, :, :]


@mutant('reference', reference=references.ALIBI)
def attention_gym_rewards_the_future():
  return biased(_signed)


def _no_cat(dims):
  slopes = [jnp.asarray(2 ** (-8 * (h + 1) / 4)) for h in range(4)]
  return {'slopes': jnp.stack(slopes) if dims.heads == 4 else jnp.cat(slopes)}


@mutant('init', dims=pe_jax.Dims(96, 6, 2, 16))
def bloom_calls_cat():
  """Row 12: fails for head counts that are no power of two."""
  return biased(_penalty, constants=_no_cat)


def _fixed_turn(params, x, positions, length, *, base):
  return turn(x, at.phases(positions, frequencies(x)))


@mutant('options')
def llama_ignores_its_base(*, base=1e4):
  hook = pe_jax.bind(_fixed_turn, base=base)
  return record(query=hook, key=hook)


def _one_hot(params, x, positions, length, *, soft):
  return turn(x, jnp.cat([positions]) if soft else at.phases(positions, frequencies(x)))


@mutant('options')
def option_that_crashes(*, soft=False):
  """Rows 4 and 16: an option that nobody ever ran."""
  return record(query=pe_jax.bind(_one_hot, soft=soft))


def _multiplies(params, x, positions):
  width = x.shape[-1]
  w = 2.0 * (1 / 1e4) ** (np.arange(width // 2) / (width // 2 - 1))
  return x + pe_jax.sinusoidal_embedding(positions, w, width=width, order='concat').astype(x.dtype)


@mutant('reference', reference=references.timing_signal(min_timescale=2.0))
def tensor2tensor_multiplies_by_min_timescale():
  """Row 14: multiplies where it should divide."""
  return record(embed=_multiplies, absolute=True)


# --- 3. Caches -----------------------------------------------------------------------------------


def _forgets(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  return jnp.cumsum(jnp.where(segments[..., None, :] == 0, 0, gates), axis=-1), carry


def fox_of_the_chunk_alone():
  return dataclasses.replace(pe_jax.fox(), place=_forgets)


MUTANTS['x_transformers_fox_of_new_tokens'] = Mutant('decode', fox_of_the_chunk_alone)
MUTANTS['fox_drops_the_carry'] = Mutant('place_prefix', fox_of_the_chunk_alone)
MUTANTS['fox_runs_across_documents'] = Mutant('place_segments', fox_of_the_chunk_alone)


def _counts_padding(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  sums = carry['sum'][..., None] + jnp.cumsum(gates, axis=-1)
  return sums, {'segment': carry['segment'], 'sum': sums[..., -1]}


@mutant('padding')
def fox_counts_padding():
  return dataclasses.replace(pe_jax.fox(), place=_counts_padding)


def _looks_ahead(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  return jnp.cumsum(gates, -1) * gates[..., -1:], carry


@mutant('causal')
def fox_looks_ahead():
  return dataclasses.replace(pe_jax.fox(), place=_looks_ahead)


def _half_gates(params, x, positions, segments, carry):
  sums, carry = pe_jax.fox().place(params, x, positions, segments, carry)
  return sums * 1.01, carry


def _half_coords(params, x, positions, segments, carry):
  sums, carry = pe_jax.fox().place(params, x, positions, segments, carry)
  return sums.astype(x.dtype), carry


@mutant('shapes')
def fox_sums_in_the_dtype():
  return dataclasses.replace(pe_jax.fox(), place=_half_coords)


@mutant('place_reference', reference=references.FOX)
def fox_gates_off():
  return dataclasses.replace(pe_jax.fox(), place=_half_gates)


# --- 5. Masks ------------------------------------------------------------------------------------


def _hides_larger(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return jnp.where(at.distance(q_pos, k_pos)[..., None, :, :] > 0, -1e30, bias)


@mutant('mask_order')
def masks_by_position():
  return biased(_hides_larger, relative=True)


def _centred(params, x, positions):
  return x - x.mean(axis=-2, keepdims=True)


@mutant('hidden')
def centres_over_tokens():
  return record(embed=_centred)


@mutant('packing')
def packs_with_a_mean():
  return record(embed=_centred)


# --- 6, 8. Sites, tables, constants --------------------------------------------------------------


@mutant('one_site')
def acts_at_two_sites():
  return record(embed=_outer, query=_fixed_turn, parts=(pe_jax.none(),))


def _clamped(params, x, positions):
  rows = jnp.asarray(params['table'])[jnp.clip(positions, 0, 63)]
  return (x + at.expand(rows, x.ndim)).astype(x.dtype)


def _rows(key, dims):
  return {'table': jax.random.normal(key, (64, dims.model))}


@mutant('max_length')
def maxtext_clamps_silently():
  """Row 15: past the table, the last row again."""
  return record(init=_rows, embed=_clamped, absolute=True, max_length=64)


@mutant('told_apart')
def clamps_without_saying_so():
  return record(init=_rows, embed=_clamped, absolute=True)


def _slopes_too(key, dims):
  return four_slopes(dims)


@mutant('constants')
def trains_its_constants():
  return biased(_penalty, init=_slopes_too)


def _integers(key, dims):
  return {'slopes': jnp.ones(dims.heads, jnp.int32)}


@mutant('constants')
def trains_integers():
  return biased(_penalty, constants=pe_jax.none().constants, init=_integers)


def _by_width(dims):
  return {'slopes': jnp.full(dims.heads, 1 / dims.model)}


@mutant('constants')
def constants_from_the_width():
  return biased(_penalty, constants=_by_width)


def _unseeded(key, dims):
  return {'slopes': jnp.asarray(np.random.normal(size=dims.heads), jnp.float32)}


@mutant('init')
def initializes_without_the_key():
  return biased(_penalty, constants=pe_jax.none().constants, init=_unseeded)


ALL_PAIRS = np.abs(np.arange(2048)[:, None] - np.arange(2048)).astype(np.float32)


def _looked_up(params, q, k, q_pos, k_pos, scale):
  rows = jnp.asarray(ALL_PAIRS)[q_pos.astype(int)[..., :, None], k_pos.astype(int)[..., None, :]]
  return -at.expand(params['slopes'][:, None, None], q.ndim) * rows[..., None, :, :]


@mutant('no_constants')
def bakes_in_all_pairs():
  return biased(_looked_up)


# --- 9. Gradients --------------------------------------------------------------------------------


def _power(key, dims):
  return {'power': jax.random.uniform(key, (dims.heads, 1, 1)) + 0.5}


def _power_bias(params, q, k, q_pos, k_pos, scale):
  steps = jnp.abs(at.distance(q_pos, k_pos))[..., None, :, :]
  power = at.expand(params['power'], steps.ndim)
  return -jnp.where(steps > 0, jnp.exp(power * jnp.log(steps)), 0)


@mutant('gradients_finite')
def log_of_distance_0():
  return record(init=_power, bias=_power_bias, per_head=('power',))


def _two(key, dims):
  return {'slopes': jnp.ones(dims.heads), 'other': jnp.ones(dims.heads)}


def _second_wins(params, q, k, q_pos, k_pos, scale):
  biases = [penalty(q_pos, k_pos, params[name]) for name in ('other', 'slopes')]
  return biases[-1]


@mutant('gradients_reach')
def x_transformers_overwrites_a_bias():
  """Row 6: two are accepted, one is overwritten."""
  return record(init=_two, bias=_second_wins, per_head=('slopes', 'other'))


# --- 10. Records ---------------------------------------------------------------------------------


def _closure():
  return record(query=lambda params, q, positions, length: q * 2)


MUTANTS['closure_is_not_equal'] = Mutant('equal', _closure)
MUTANTS['closure_does_not_pickle'] = Mutant('picklable', _closure)
MUTANTS['closure_retraces'] = Mutant('no_retrace', _closure)


# --- Claims --------------------------------------------------------------------------------------


@mutant('relative')
def x_transformers_leaves_the_table_on():
  """Row 5: ALiBi, and an absolute encoding beside it."""
  return dataclasses.replace(pe_jax.compose(pe_jax.sinusoidal(), pe_jax.alibi()), relative=True)


@mutant('absolute')
def claims_to_be_absolute():
  return dataclasses.replace(pe_jax.rope(), absolute=True)


@mutant('length')
def claims_to_read_the_length():
  return dataclasses.replace(pe_jax.rope(), length_dependent=True)


@mutant('length')
def reads_the_length_in_silence():
  rule = pe_jax.scaling.dynamic_ntk(factor=2, original_length=64)
  return dataclasses.replace(pe_jax.rope(scaling=rule), length_dependent=False)


@mutant('reads_content')
def reads_content_in_silence():
  return dataclasses.replace(pe_jax.shaw(), reads_content=False)


def _fire(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return bias / (1 + at.as_float(q_pos)[..., None, :, None])


@mutant('by_distance')
def divides_by_the_query_position():
  return biased(_fire, by_distance=True)


@mutant('permutation')
def depends_on_order_in_silence():
  return dataclasses.replace(pe_jax.fox(), order_dependent=False)


@mutant('permutation')
def claims_to_depend_on_order():
  return dataclasses.replace(pe_jax.alibi(), order_dependent=True)
