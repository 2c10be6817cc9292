# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: every line of the contract in `pe_jax.base` as a law that an encoding keeps.

In a test, `check(factory, dims)` returns a report or raises; in a terminal,
`python -m pe_jax.testing FILE.py:factory` prints it as a table.
"""

from pe_jax.testing._check import check
from pe_jax.testing._check import LAWS
from pe_jax.testing._report import ConformanceError
from pe_jax.testing._report import Finding
from pe_jax.testing._report import Report

__all__ = ('check', 'ConformanceError', 'Finding', 'LAWS', 'Report')
