# SPDX-License-Identifier: Apache-2.0
"""Frequency rules: the papers' loops, the limits in which a rule is RoPE, and what a rule is."""

import functools
import math
import pickle
import re

import chex
import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import scaling
from tests import references_scaling as references
from tests.rules import BASE
from tests.rules import BY_LENGTH
from tests.rules import each_rule
from tests.rules import FIXED
from tests.rules import kind
from tests.rules import LISTS
from tests.rules import P
from tests.rules import query
from tests.rules import WIDTH
from tests.rules import X

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
  assert rules == {*ONE, 'default', 'dynamic_ntk', 'dynamic_yarn'}
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
