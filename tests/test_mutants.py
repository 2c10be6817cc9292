# SPDX-License-Identifier: Apache-2.0
"""The kit is proven by what it catches: every wrong encoding fails the law named for it."""

import pytest

from pe_jax import testing
from tests import mutants
from tests.mutants.table import DIMS

# Laws of `attend` alone, which guards every encoding and kernel: none can break them.
GUARDED = {'empty_rows', 'causal_only'}

# Mutants that crash, as what they re-create does; all others must be seen to be wrong.
CRASH = {
    'bloom_calls_cat',
    'integers_only',
    'keeps_a_tracer',
    'option_that_crashes',
    'x_transformers_breaks_on_rows',
}


@pytest.mark.parametrize('name', mutants.MUTANTS)
def test_mutant_is_flagged(name):
  mutant = mutants.MUTANTS[name]
  options = {'dims': DIMS, **mutant.options}
  with pytest.raises(testing.ConformanceError) as error:
    testing.check(mutant.factory, **options, laws=(mutant.law,))
  (finding,) = error.value.report.findings
  assert finding.law == mutant.law
  assert finding.message and finding.message in str(error.value)
  assert name in CRASH or 'Error: ' not in finding.message or mutant.law == 'picklable'


def test_every_law_is_proven():
  laws = {law.__name__.removeprefix('law_') for law in testing.LAWS}
  assert laws == {mutant.law for mutant in mutants.MUTANTS.values()} | GUARDED
