# SPDX-License-Identifier: Apache-2.0
"""Encodings of every kind under the laws of attention, computed by tiles."""

import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import testing
from tests.test_laws import CASES

TILED = pe_jax.bind(kernels.blockwise, tile=(5, 3))
LAWS = ('kernel', 'decode', 'packing')


KINDS = ('alibi_learned', 'compose with place', 'fire', 'rope', 'shaw', 't5')


@pytest.mark.parametrize('name', KINDS)
def test_encoding_keeps_the_laws_of_attention_by_tiles(name):
  case = CASES[name]
  report = testing.check(case.factory, case.dims, kernel=TILED, laws=LAWS)
  assert [finding.status for finding in report.findings] == ['passed'] * len(LAWS)
