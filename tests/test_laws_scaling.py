# SPDX-License-Identifier: Apache-2.0
"""RoPE under every frequency rule keeps every law, and is its paper's in float64."""

import functools
import math

import pytest

import pe_jax
from pe_jax import scaling
from pe_jax import testing
from tests import references_scaling as r

DIMS = pe_jax.Dims(model=64, heads=4, kv_heads=2, head_dim=16)
BASE = 1e4
LISTS = {
    'short_factor': tuple(1 + i / 8 for i in range(8)),
    'long_factor': tuple(1.0 + i for i in range(8)),
}
GIVEN = tuple(1 / i for i in range(1, 9))


def given():
  """A rule that does not read the base, so a factory that takes none."""
  return pe_jax.rope(scaling=scaling.given(inv_freq=GIVEN, attention_factor=1.2))


def scaled(rule, frequencies, factor=lambda length: 1.0):
  return functools.partial(pe_jax.rope, scaling=rule), r.rotation(frequencies, factor)


def factors(length):
  return LISTS['long_factor' if length > 64 else 'short_factor']


def sharpening(factor):
  return 0.1 * math.log(factor) + 1


CASES = {
    'linear': scaled(scaling.linear(factor=3), lambda d, _: [w / 3 for w in r.loop(d, BASE)]),
    'ntk': scaled(scaling.ntk(factor=3), lambda d, _: r.ntk(d, BASE, 3)),
    'ntk_fixed': scaled(scaling.ntk_fixed(factor=3), lambda d, _: r.ntk_fixed(d, BASE, 3)),
    'ntk_mixed': scaled(
        scaling.ntk_mixed(factor=3, exponent=0.4), lambda d, _: r.ntk_mixed(d, BASE, 3, 0.4)
    ),
    'ntk_by_parts': scaled(
        scaling.ntk_by_parts(factor=3, original_length=512), lambda d, _: r.yarn(d, BASE, 3, 512)
    ),
    'yarn': scaled(
        scaling.yarn(factor=3, original_length=512, truncate=False),
        lambda d, _: r.yarn(d, BASE, 3, 512, truncate=False),
        lambda _: sharpening(3),
    ),
    'llama3': scaled(
        scaling.llama3(factor=3, original_length=512), lambda d, _: r.llama3(d, BASE, 3, 512)
    ),
    'proportional': scaled(
        scaling.proportional(fraction=0.5), lambda d, _: r.loop(d, BASE)[: d // 4] + [0] * (d // 4)
    ),
    'given': (given, r.rotation(lambda d, _: GIVEN, lambda _: 1.2)),
    'dynamic_ntk': scaled(
        scaling.dynamic_ntk(factor=2, original_length=64),
        lambda d, length: r.dynamic_ntk(d, BASE, 2, 64, length),
    ),
    'dynamic_yarn': scaled(
        scaling.dynamic_yarn(original_length=64, beta_fast=4, beta_slow=0.25),
        lambda d, length: r.yarn(d, BASE, max(length / 64, 1), 64, 4, 0.25),
        lambda length: sharpening(max(length / 64, 1)),
    ),
    'longrope': scaled(
        scaling.longrope(original_length=64, factor=4, **LISTS),
        lambda d, length: [w / f for w, f in zip(r.loop(d, BASE), factors(length))],
        lambda _: math.sqrt(1 + math.log(4) / math.log(64)),
    ),
}


@pytest.mark.parametrize('name', CASES)
def test_rope_keeps_every_law_under(name):
  factory, reference = CASES[name]
  assert testing.check(factory, DIMS, reference).ok


def test_every_rule_is_in_the_table():
  rules = {name for name in scaling.__all__ if f'{name}_frequencies' in scaling.__all__}
  assert rules == {*CASES, 'default'}  # rope() is in test_laws.py
