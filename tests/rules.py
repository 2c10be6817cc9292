# SPDX-License-Identifier: Apache-2.0
"""The frequency rules that the tests look at, and one way to apply them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import scaling

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


def query(encoding, x, positions, length=None):
  dims = pe_jax.Dims(model=32, heads=2)
  return encoding.query(encoding.constants(dims), x, positions, length)


X = jax.random.normal(jax.random.key(0), (1, 6, 2, 16))
P = jnp.array([[0, 1, 5, 100, 5000, 2**20 + 3]])
