# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: every line of the contract in `pe_jax.base` as a law that an encoding keeps.

In a test:

>>> import pe_jax
>>> from pe_jax import testing
>>> dims = pe_jax.Dims(model=64, heads=4, kv_heads=2)
>>> testing.check(pe_jax.alibi, dims).ok  # doctest: +SKIP
True

For a file of one's own, in a terminal: `python -m pe_jax.testing FILE.py:factory`.
"""

from pe_jax.testing._check import check
from pe_jax.testing._check import LAWS
from pe_jax.testing._report import ConformanceError
from pe_jax.testing._report import Finding
from pe_jax.testing._report import Report

__all__ = ('check', 'ConformanceError', 'Finding', 'LAWS', 'Report')
