# SPDX-License-Identifier: Apache-2.0
"""Frequency rules: what has gone wrong elsewhere, and bad input."""

import re

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import scaling
from tests import references_scaling as references
from tests.rules import BASE
from tests.rules import LISTS
from tests.rules import P
from tests.rules import query
from tests.rules import WIDTH
from tests.rules import X

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
)
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
      16, 1e4, length, factor=500_000, original_length=2048)[0])(8192)
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
)
def test_numbers_that_make_no_sense_are_named(call, says):
  with pytest.raises(ValueError, match=re.escape(says)):
    call()
