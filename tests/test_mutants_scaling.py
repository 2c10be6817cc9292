# SPDX-License-Identifier: Apache-2.0
"""Every wrong RoPE fails the law named for it, and so do not the right ones."""

import functools

import pytest

import pe_jax
from pe_jax import scaling
from pe_jax import testing
from tests.mutants import scaling as mutants_scaling
from tests.mutants.table import DIMS

MUTANTS = mutants_scaling.MUTANTS


@pytest.mark.parametrize('name', MUTANTS)
def test_mutant_is_flagged(name):
  mutant = MUTANTS[name]
  with pytest.raises(testing.ConformanceError) as error:
    testing.check(mutant.factory, DIMS, **mutant.options, laws=(mutant.law,))
  (finding,) = error.value.report.findings
  assert finding.law == mutant.law
  assert 'Error: ' not in finding.message


@pytest.mark.parametrize(
    'rule, reference',
    [
        (scaling.yarn(**mutants_scaling.FAST), mutants_scaling.YARN),
        (scaling.llama3(factor=4, original_length=512), mutants_scaling.LLAMA3),
        (scaling.dynamic_ntk(factor=2, original_length=16), None),
    ],
    ids=['yarn', 'llama3', 'dynamic_ntk'],
)
def test_the_right_versions_pass_the_same_laws(rule, reference):
  laws = {mutant.law for mutant in MUTANTS.values()}
  assert testing.check(functools.partial(pe_jax.rope, scaling=rule), DIMS, reference, laws=laws).ok
