# SPDX-License-Identifier: Apache-2.0
"""Frequency rules: the papers' loops, limits in which a rule is RoPE, tracing, and bad input."""

import functools
import math
import pickle
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import scaling
from tests import references_scaling as references

WIDTH, BASE = 16, 1e4
FIXED = (
    scaling.default(),
    scaling.linear(factor=3),
    scaling.ntk(factor=3),
    scaling.ntk_fixed(factor=3),
    scaling.ntk_mixed(factor=3),
    scaling.ntk_by_parts(factor=3, original_length=512),
    scaling.yarn(factor=3, original_length=512, truncate=False, mscale=0.7, mscale_all_dim=1),
    scaling.llama3(factor=3, original_length=512),
    scaling.proportional(fraction=0.5),
    scaling.given(inv_freq=tuple(1 / i for i in range(1, 9)), attention_factor=1.2),
)
LISTS = {'short_factor': tuple(np.linspace(1, 2, 8)), 'long_factor': tuple(np.linspace(1, 9, 8))}
BY_LENGTH = (
    scaling.dynamic_ntk(factor=2, original_length=8),
    scaling.dynamic_yarn(original_length=8, beta_fast=1, beta_slow=0.05),
    scaling.longrope(original_length=8, factor=4, **LISTS),
)


def kind(rule):
  return rule.name.split('(')[0]


each_rule = pytest.mark.parametrize('rule', FIXED + BY_LENGTH, ids=kind)
each_by_length = pytest.mark.parametrize('rule', BY_LENGTH, ids=kind)


# --- The papers, as float64 loops ----------------------------------------------------------------


@pytest.mark.parametrize('seed', range(8))
def test_yarn_and_llama3_are_the_papers(seed):
  rng = np.random.default_rng(seed)
  width, base = int(rng.choice([16, 64, 128])), 10 ** rng.uniform(3.5, 7)
  factor, length = rng.uniform(1, 40), float(rng.choice([1024, 8192, 32768]))
  fast, slow, truncate = rng.uniform(8, 64), rng.uniform(0.3, 4), bool(seed % 2)
  options = {'beta_fast': fast, 'beta_slow': slow, 'truncate': truncate}
  options |= {'factor': factor, 'original_length': length}
  frequencies, attention_factor = scaling.yarn(**options)(width, base)
  want = references.yarn(width, base, factor, length, fast, slow, truncate)
  np.testing.assert_allclose(frequencies, want, rtol=1e-12)
  assert attention_factor == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-12)
  frequencies, attention_factor = scaling.ntk_by_parts(**options)(width, base)
  np.testing.assert_allclose(frequencies, want, rtol=1e-12)
  assert attention_factor == 1
  low, high = rng.uniform(0.5, 2), rng.uniform(2.5, 8)
  rule = scaling.llama3(
      factor=factor, original_length=length, low_freq_factor=low, high_freq_factor=high
  )
  want = references.llama3(width, base, factor, length, low, high)
  np.testing.assert_allclose(rule(width, base)[0], want, rtol=1e-12)


def test_yarns_ramp_ends_at_the_width_not_at_half_of_it():
  frequencies, _ = scaling.yarn(factor=8, original_length=131072)(64, 1e4)
  np.testing.assert_allclose(frequencies, references.yarn(64, 1e4, 8, 131072), rtol=1e-12)


def test_equal_betas_make_a_step():
  rule = scaling.yarn(factor=8, original_length=512, beta_fast=8, beta_slow=8, truncate=False)
  plain = references.loop(16, 1e4)
  want = [w if 512 * w / (2 * math.pi) > 8 else w / 8 for w in plain]
  np.testing.assert_allclose(rule(16, 1e4)[0], want, rtol=1e-12)


@pytest.mark.parametrize('factor', [1.5, 8.0])
@pytest.mark.parametrize('width, base', [(16, 1e4), (64, 5e5)])
def test_ntk_rules_are_bases(width, base, factor):
  pairs = width // 2
  raised = references.loop(width, base * factor ** (width / (width - 2)))
  np.testing.assert_allclose(scaling.ntk(factor=factor)(width, base)[0], raised, rtol=1e-12)
  fixed = [w / factor ** (2 / width) for w in references.loop(width, base * factor)]
  np.testing.assert_allclose(scaling.ntk_fixed(factor=factor)(width, base)[0], fixed, rtol=1e-12)
  a = math.log(factor) / pairs**0.4
  mixed = [w / math.exp(a * (i + 1) ** 0.4) for i, w in enumerate(references.loop(width, base))]
  rule = scaling.ntk_mixed(factor=factor, exponent=0.4)
  np.testing.assert_allclose(rule(width, base)[0], mixed, rtol=1e-12)
  for length in (1000, 2049, 8192):
    times = max(factor * length / 2048 - (factor - 1), 1)
    raised = references.loop(width, base * times ** (width / (width - 2)))
    rule = scaling.dynamic_ntk(factor=factor, original_length=2048)
    np.testing.assert_allclose(rule(width, base, length)[0], raised, rtol=1e-12)


def test_dynamic_yarn_is_yarn_at_the_ratio_of_lengths():
  rule = scaling.dynamic_yarn(original_length=512, beta_fast=16, truncate=False)
  for length in (513, 2048, 100_000):
    fixed = scaling.yarn(
        factor=length / 512, original_length=512, beta_fast=16, truncate=False
    )
    frequencies, factor = rule(WIDTH, BASE, length)
    np.testing.assert_allclose(frequencies, fixed(WIDTH, BASE)[0], rtol=1e-12)
    assert factor == pytest.approx(fixed(WIDTH, BASE)[1], rel=1e-12)


def test_longrope_divides_by_the_list_of_the_length():
  rule = scaling.longrope(original_length=8, factor=4, **LISTS)
  for length, name in {7: 'short_factor', 8: 'short_factor', 9: 'long_factor'}.items():
    frequencies, factor = rule(WIDTH, BASE, length)
    want = [w / f for w, f in zip(references.loop(WIDTH, BASE), LISTS[name])]
    np.testing.assert_allclose(frequencies, want, rtol=1e-12)
    assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(8)), rel=1e-12)
  given = scaling.longrope(original_length=8, attention_factor=1.19, **LISTS)
  assert given(WIDTH, BASE, 9)[1] == 1.19


# --- Limits --------------------------------------------------------------------------------------


def query(encoding, x, positions, length=None):
  dims = pe_jax.Dims(model=32, heads=2)
  return encoding.query(encoding.constants(dims), x, positions, length)


X = jax.random.normal(jax.random.key(0), (1, 6, 2, 16))
P = jnp.array([[0, 1, 5, 100, 5000, 2**20 + 3]])
ONE = {
    'linear': scaling.linear(factor=1),
    'ntk': scaling.ntk(factor=1),
    'ntk_fixed': scaling.ntk_fixed(factor=1),
    'ntk_mixed': scaling.ntk_mixed(factor=1),
    'ntk_by_parts': scaling.ntk_by_parts(factor=1, original_length=512),
    'yarn': scaling.yarn(factor=1, original_length=512, truncate=False),
    'llama3': scaling.llama3(factor=1, original_length=512),
    'proportional': scaling.proportional(fraction=1),
    'longrope': scaling.longrope(
        short_factor=(1,) * 8, long_factor=(1,) * 8, factor=1, original_length=512
    ),
    'given': scaling.given(inv_freq=tuple(references.loop(16, 1e4))),
}


@pytest.mark.parametrize('name', ONE)
def test_at_factor_1_every_rule_is_rope(name):
  length = 4 if ONE[name].length_dependent else None
  plain = query(pe_jax.rope(), X, P)
  np.testing.assert_array_equal(query(pe_jax.rope(scaling=ONE[name]), X, P, length), plain)


def test_the_limits_cover_every_rule():
  # Two rules have no factor to set to 1: they are RoPE up to the original length, below.
  rules = {name for name in scaling.__all__ if f'{name}_frequencies' in scaling.__all__}
  assert rules == {*ONE, 'default', 'dynamic_ntk', 'dynamic_yarn'} == set(TRACED) | {'given'}
  assert rules == set(map(kind, FIXED + BY_LENGTH))


@pytest.mark.parametrize('rule', BY_LENGTH[:2], ids=['dynamic_ntk', 'dynamic_yarn'])
def test_dynamic_rules_are_rope_up_to_the_original_length(rule):
  plain, dynamic = query(pe_jax.rope(), X, P), pe_jax.rope(scaling=rule)
  for length in (1, 7, 8):
    np.testing.assert_array_equal(query(dynamic, X, P, length), plain)
  assert np.abs(query(dynamic, X, P, 9) - plain).max() > 1e-3


def test_ntk_keeps_the_first_frequency_and_interpolates_the_last():
  plain, ntk = (rule(64, BASE)[0] for rule in (scaling.default(), scaling.ntk(factor=6)))
  assert ntk[0] == plain[0]
  assert ntk[-1] == pytest.approx(plain[-1] / 6, rel=1e-15)


@pytest.mark.parametrize('fraction, kept', [(0.3, 2), (0.49, 3), (0.5, 4), (0.99, 7)])
def test_a_proportion_counts_whole_pairs(fraction, kept):
  found, _ = scaling.proportional(fraction=fraction, factor=2)(16, BASE)
  want = [w / 2 for w in references.loop(16, BASE)[:kept]] + [0] * (8 - kept)
  np.testing.assert_allclose(found, want, rtol=1e-15)


def test_a_proportion_of_0_turns_nothing():
  none = pe_jax.rope(scaling=scaling.proportional(fraction=0))
  np.testing.assert_array_equal(query(none, X, P), X)


def test_llama3_and_yarn_leave_fast_channels_and_divide_slow_ones():
  plain = scaling.default()(128, 5e5)[0]
  for rule in (
      scaling.llama3(factor=7, original_length=8192),
      scaling.yarn(factor=7, original_length=8192),
  ):
    scaled = rule(128, 5e5)[0]
    assert (scaled[:16] == plain[:16]).all() and (scaled[-20:] == plain[-20:] / 7).all()


# --- What a rule is ------------------------------------------------------------------------------


@each_rule
def test_rules_are_equal_by_value(rule):
  copy = pickle.loads(pickle.dumps(rule))
  assert copy == rule and hash(copy) == hash(rule) and repr(copy) == repr(rule)
  assert eval(repr(rule), vars(scaling)) == rule
  assert pe_jax.rope(scaling=copy) == pe_jax.rope(scaling=rule)


@each_rule
def test_a_rule_is_the_function_of_its_name(rule):
  name, arguments = re.fullmatch(r'(\w+)\((.*)\)', rule.name).groups()
  frequencies = getattr(scaling, f'{name}_frequencies')
  options = eval(f'dict({arguments})')
  length = (20,) if rule.length_dependent else ()
  if name == 'longrope':
    options['attention_factor'] = scaling.longrope_attention_factor(
        options.pop('factor'), options['original_length']
    )
  if name == 'yarn':
    assert frequencies(WIDTH, BASE, **{**options, 'mscale': None})[1] != rule(WIDTH, BASE)[1]
  chex.assert_trees_all_equal(
      frequencies(WIDTH, BASE, *length, **options), rule(WIDTH, BASE, *length)
  )


def test_rope_under_any_rule_lowers_to_the_same_program_but_for_constants():
  programs, texts = set(), set()
  for rule in FIXED:
    encoding = pe_jax.rope(scaling=rule)
    text = jax.jit(functools.partial(query, encoding)).lower(X, P).as_text()
    texts.add(text)
    programs.add(re.sub(r'dense<[^>]*>', 'dense', text))
  assert len(programs) == 1 and len(texts) == len(FIXED)


@pytest.mark.parametrize('width', [4, 8, 16])
def test_a_rule_applies_to_the_rotated_width_and_the_layers_base(width):
  rule = scaling.yarn(factor=5, original_length=512)
  encoding = pe_jax.rope(base=5e4, width=width, scaling=rule)
  constants = encoding.constants(pe_jax.Dims(model=32, heads=2))
  want = references.yarn(width, 5e4, 5, 512, 32, 1, True)
  np.testing.assert_allclose(constants['inv_freq'], want, rtol=1e-6)
  # The attention factor does not touch what passes by.
  turned = query(encoding, X, P)
  np.testing.assert_array_equal(turned[..., width:], X[..., width:])
  grown = np.linalg.norm(turned[..., :width]) / np.linalg.norm(X[..., :width])
  assert grown == pytest.approx(0.1 * math.log(5) + 1, rel=1e-6)


@each_rule
def test_a_factor_of_the_callers_own_multiplies(rule):
  arrays = rule.arrays(WIDTH, BASE)
  plain = rule.at(arrays, 20)[1]
  other = rule.at({**arrays, 'attention_factor': 2 * arrays['attention_factor']}, 20)[1]
  assert other == pytest.approx(2 * plain, rel=1e-12)


def test_a_rule_of_ones_own():
  rule = scaling.from_frequencies(pe_jax.bind(_squared, power=2))
  assert repr(rule) == 'squared(power=2.0)'
  constants = pe_jax.rope(scaling=rule).constants(pe_jax.Dims(model=32, heads=2))
  np.testing.assert_allclose(constants['inv_freq'], np.square(references.loop(16, 1e4)), rtol=1e-6)


def _squared(width, base, *, power):
  return scaling.inverse_frequencies(width, base) ** power, 1.0


# --- Every number traces -------------------------------------------------------------------------

BY_PARTS = {'factor': 3.0, 'original_length': 512.0, 'beta_fast': 16.0, 'beta_slow': 0.7}
TRACED = {
    'default': {},
    'linear': {'factor': 3.0},
    'ntk': {'factor': 3.0},
    'ntk_fixed': {'factor': 3.0},
    'ntk_mixed': {'factor': 3.0, 'exponent': 0.6},
    'proportional': {'fraction': 0.55, 'factor': 3.0},
    'ntk_by_parts': BY_PARTS,
    'yarn': {**BY_PARTS, 'mscale': 0.7, 'mscale_all_dim': 1.1},
    'llama3': {
        'factor': 3.0, 'original_length': 512.0, 'low_freq_factor': 0.9, 'high_freq_factor': 5.0,
    },
    'dynamic_ntk': {'length': 40.0, 'factor': 3.0, 'original_length': 16.0},
    'dynamic_yarn': {
        'length': 2000.0, 'original_length': 512.0, 'beta_fast': 16.0, 'beta_slow': 0.7,
    },
    'longrope': {'length': 20.0, 'original_length': 16.0, 'attention_factor': 1.3},
}  # fmt: skip
STATIC = {
    'ntk_by_parts': {'truncate': False},
    'yarn': {'truncate': False},
    'dynamic_yarn': {'truncate': False},
    'longrope': LISTS,
}
# Numbers that choose, and so have no slope.
CHOICES = {('proportional', 'fraction'), ('longrope', 'length'), ('longrope', 'original_length')}


def both(name, numbers):
  """Returns log frequencies (0 counts as 1) and attention factor as one vector."""
  frequencies = getattr(scaling, f'{name}_frequencies')
  options = {**STATIC.get(name, {}), **numbers}
  base = options.pop('base')
  inv_freq, factor = frequencies(WIDTH, base, **options)
  xp = jnp if isinstance(inv_freq, jax.Array) else np
  logs = xp.log(xp.where(inv_freq > 0, inv_freq, 1.0))
  return xp.concatenate([logs, xp.atleast_1d(xp.asarray(factor, logs.dtype))])


@pytest.mark.parametrize('name', TRACED)
def test_every_number_is_swept_and_differentiated(name):
  numbers = {'base': 2e4, **TRACED[name]}
  want = both(name, numbers)
  assert want.dtype == np.float64
  run = functools.partial(both, name)
  np.testing.assert_allclose(jax.jit(run)(numbers), want, rtol=1e-5, atol=1e-5)
  slopes = jax.jit(jax.jacfwd(run))(numbers)
  for option, value in numbers.items():
    moved = [both(name, {**numbers, option: value * (1 + step)}) for step in (1e-6, -1e-6)]
    slope = (moved[0] - moved[1]) / (2e-6 * value)
    np.testing.assert_allclose(slopes[option], slope, rtol=2e-3, atol=2e-4 / abs(value))
    assert (name, option) in CHOICES or np.abs(slope).max() > 0, f'{option} has no influence'
  swept = {option: jnp.array([value, value * 1.1]) for option, value in numbers.items()}
  rows = jax.vmap(run)(swept)
  for i, row in enumerate(rows):
    one = {option: float(values[i]) for option, values in swept.items()}
    np.testing.assert_allclose(row, both(name, one), rtol=1e-5, atol=1e-5)


def test_a_base_is_learned_through_rope():
  encoding, dims = pe_jax.rope(), pe_jax.Dims(model=32, heads=2)
  constants = encoding.constants(dims)
  weights = jax.random.normal(jax.random.key(3), X.shape)

  def loss(base):
    inv_freq, _ = scaling.default_frequencies(16, base)
    params = {**constants, 'inv_freq': inv_freq}
    return jnp.vdot(encoding.query(params, X, P % 64, None), weights)

  # The value at the default base is that of the exact phases, and the slope is not lost there.
  slope = jax.grad(loss)(1e4)
  np.testing.assert_allclose(slope, (loss(1e4 * 1.01) - loss(1e4 * 0.99)) / 200, rtol=1e-2)
  swept = jax.vmap(loss)(jnp.array([1e4, 5e5]))
  want = jnp.vdot(query(pe_jax.rope(base=5e5), X, P % 64), weights)
  np.testing.assert_allclose(swept[1], want, rtol=1e-5)


# --- Rules that read the length ------------------------------------------------------------------


def attended(rule, q, k, v, q_pos, k_pos, length):
  options = {'encoding': pe_jax.rope(scaling=rule), 'params': {}, 'length': length}
  return pe_jax.attend(q, k, v, q_pos, k_pos, mask=pe_jax.Mask(causal=True), **options)


@each_by_length
def test_decoding_equals_the_whole_at_equal_length(rule):
  q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 12, 2, 16))
  at = jnp.arange(12)
  whole = attended(rule, q, k, v, at, at, 12)
  # Below the original length of 8 the keys would be turned otherwise, did they not know the 12.
  first = attended(rule, q[:, :5], k[:, :5], v[:, :5], at[:5], at[:5], 12)
  rest = attended(rule, q[:, 5:], k, v, at[5:], at, 12)
  np.testing.assert_allclose(jnp.concatenate([first, rest], axis=1), whole, atol=2e-6)
  assert np.abs(attended(rule, q, k, v, at, at, 8) - whole).max() > 1e-3


@each_by_length
def test_each_row_has_its_length_and_nothing_is_remembered(rule):
  q, k, v = jax.random.normal(jax.random.key(2), (3, 2, 6, 2, 16))
  at = jnp.arange(6)
  short = attended(rule, q, k, v, at, at, 6)
  rows = attended(rule, q, k, v, at, at, jnp.array([6, 64]))
  np.testing.assert_array_equal(attended(rule, q, k, v, at, at, 6), short)
  np.testing.assert_allclose(rows[0], short[0], atol=1e-6)
  np.testing.assert_allclose(rows[1], attended(rule, q, k, v, at, at, 64)[1], atol=1e-6)
  assert np.abs(rows[1] - short[1]).max() > 1e-3


@each_by_length
def test_a_length_does_not_retrace(rule):
  traces = []

  @jax.jit
  def run(x, length):
    traces.append(length)
    return query(pe_jax.rope(scaling=rule), x, P, length)

  for length in (4, 9, 100):
    run(X, length)
  assert len(traces) == 1
  with pytest.raises(ValueError, match='reads the length'):
    rule(WIDTH, BASE)


# --- Cases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'factor, want',
    [(4, 1.138629), (16, 1.277259), (40, 1.368888), (64, 1.415888), (128, 1.485203), (0.5, 1)],
)
def test_27_yarns_attention_factor(factor, want):
  assert scaling.yarn_attention_factor(factor) == pytest.approx(want, abs=1e-6)
  assert scaling.yarn_attention_factor(factor, mscale=1, mscale_all_dim=1) == 1
  assert scaling.yarn_attention_factor(factor, 1, 0) == scaling.yarn_attention_factor(factor)
  given = {'factor': max(factor, 1), 'original_length': 512, 'attention_factor': 1}
  assert scaling.yarn(**given)(WIDTH, BASE)[1] == 1
  assert scaling.yarn(mscale=0.7, mscale_all_dim=2, **given)(WIDTH, BASE)[1] == 1


def test_27_scores_grow_by_the_square():
  rule = scaling.yarn(factor=16, original_length=512)
  without = scaling.ntk_by_parts(factor=16, original_length=512)
  scores = [
      np.einsum('btnh,bsnh->nts', *[query(pe_jax.rope(scaling=r), x, P) for x in (X, X[::-1] + 1)])
      for r in (rule, without)
  ]
  np.testing.assert_allclose(scores[0], scores[1] * 1.277259**2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    'options, width, base, want',
    [
        (
            {'factor': 32, 'original_length': 4096, 'truncate': False}, 64, 150000,
            {8: 5.081327e-2, 9: 3.170570e-2, 12: 6.794959e-3, 17: 1.293187e-4, 18: 3.830881e-5,
             31: 3.023511e-7},
        ),
        (
            {'factor': 32, 'original_length': 4096}, 64, 150000,
            {8: 5.081327e-2, 9: 3.162075e-2, 12: 7.015714e-3, 17: 2.279478e-4, 18: 3.830881e-5,
             31: 3.023511e-7},
        ),
        (
            {'factor': 4, 'original_length': 32768}, 128, 1e6,
            {0: 1, 22: 8.659643e-3, 23: 6.978306e-3, 30: 1.064361e-3, 39: 6.490394e-5,
             40: 4.445699e-5, 63: 3.102344e-7},
        ),
        ({'factor': 4, 'original_length': 64}, 8, 1e4, {0: 1, 1: 0.0625, 2: 0.0025, 3: 0.00025}),
    ],
)  # fmt: skip
def test_45_yarn_at_its_edges(options, width, base, want):
  frequencies, _ = scaling.yarn(**options)(width, base)
  np.testing.assert_allclose(frequencies[list(want)], list(want.values()), rtol=1e-6)


@pytest.mark.parametrize('width, length', [(8, 64), (4, 16), (16, 8)])
@pytest.mark.parametrize('truncate', [False, True])
def test_45_small_heads_and_lengths_stay_finite(width, length, truncate):
  rule = scaling.yarn(factor=4, original_length=length, truncate=truncate)
  frequencies, _ = rule(width, BASE)
  plain = np.array(references.loop(width, BASE))
  assert ((plain / 4 <= frequencies * (1 + 1e-12)) & (frequencies <= plain)).all()


def test_61_large_bases_and_lengths_are_no_fixed_width_integers():
  for base in (10_000_000, np.int32(10_000_000), 1e7, np.float32(1e7)):
    constants = pe_jax.rope(base=base).constants(pe_jax.Dims(model=128, heads=1))
    assert constants['inv_freq'][63] == pytest.approx(1.286397e-7, rel=1e-6)
  rule = scaling.yarn(factor=np.int32(40), original_length=np.int32(163840))
  assert rule == scaling.yarn(factor=40.0, original_length=163840.0)
  assert np.isfinite(rule(64, 1e4)[0]).all()
  traced = jax.jit(lambda length: scaling.dynamic_ntk_frequencies(
      16, 1e4, length, factor=500_000, original_length=2048)[0])(8192)  # fmt: skip
  np.testing.assert_allclose(
      traced, scaling.dynamic_ntk(factor=500_000, original_length=2048)(16, 1e4, 8192)[0], rtol=1e-5
  )


# --- Bad input -----------------------------------------------------------------------------------

YARN = {'factor': 4, 'original_length': 512}


@pytest.mark.parametrize(
    'call, says',
    [
        (lambda: scaling.linear(factor=0.5), 'factor=0.5 must be at least 1'),
        (lambda: scaling.linear(factor=float('nan')), 'factor=nan must be at least 1'),
        (lambda: scaling.linear(), "linear: missing a required argument: 'factor'"),
        (lambda: scaling.ntk(factor=0), 'factor=0.0'),
        (lambda: scaling.ntk_fixed(factor=-1), 'factor=-1.0'),
        (lambda: scaling.ntk_mixed(factor=2, exponent=0), 'exponent=0.0 must be'),
        (lambda: scaling.dynamic_ntk(factor=2, original_length=0), 'original_length=0.0'),
        (lambda: scaling.dynamic_yarn(original_length=0.5), 'original_length=0.5'),
        (lambda: scaling.yarn(**YARN, beta_fast=1, beta_slow=32), 'beta_fast >= beta_slow > 0'),
        (lambda: scaling.yarn(**YARN, beta_slow=0), 'beta_fast >= beta_slow > 0'),
        (lambda: scaling.yarn(**YARN, attention_factor=0), 'attention_factor=0.0 must be'),
        (lambda: scaling.yarn(**YARN, mscale=-1), 'mscale=-1.0'),
        (lambda: scaling.yarn(factor=4, original_length=3)(64, 1e4), 'no channel to blend'),
        (lambda: scaling.yarn(factor=4, original_length=1e12)(64, 1e4), 'no channel to blend'),
        (lambda: scaling.llama3(**YARN, low_freq_factor=4), 'high_freq_factor > low_freq_factor'),
        (lambda: scaling.proportional(fraction=1.5), 'fraction=1.5 must be from 0'),
        (lambda: scaling.longrope(**LISTS, original_length=8), 'takes factor'),
        (lambda: scaling.longrope(**LISTS, original_length=1, factor=2), 'must be above 1'),
        (
            lambda: scaling.longrope(
                short_factor=(1, 2), long_factor=(1,), original_length=8, factor=2
            ),
            'short_factor has 2 numbers and long_factor 1',
        ),
        (
            lambda: scaling.longrope(**LISTS, original_length=8, factor=2)(32, 1e4, 4),
            'short_factor has 8 numbers: width=32 takes 16',
        ),
        (lambda: scaling.given(inv_freq=()), 'must list one number'),
        (lambda: scaling.given(inv_freq=(1, 2))(16, 1e4), 'width=16: pass 8 of them'),
        (lambda: scaling.default()(7, 1e4), 'width=7 must be even'),
        (lambda: pe_jax.rope(scaling=scaling.linear), 'is no rule'),
        (lambda: pe_jax.rope(scaling='linear'), 'is no rule'),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_named(call, says):
  with pytest.raises(ValueError, match=re.escape(says)):
    call()
