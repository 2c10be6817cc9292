# SPDX-License-Identifier: Apache-2.0
"""Frequency rules: how fast RoPE turns each pair of channels, and what a longer text does to it.

Each rule is a pure function, `yarn_frequencies(width, base, factor=..., ...)`, whose numbers may be
traced, swept by vmap and differentiated; it returns frequencies, radians per position of shape
[width / 2], and one attention factor that multiplies cos and sin. Plain numbers are computed in
float64. The rule of the same name without `_frequencies` holds its numbers, compares by value, and
is what `pe_jax.rope(scaling=...)` takes; called with a width and a base it gives the same result.

>>> frequencies, factor = default()(width=4, base=1e4)
>>> frequencies.tolist(), factor
([1.0, 0.01], 1.0)
>>> import jax
>>> jax.grad(lambda factor: linear_frequencies(4, 1e4, factor=factor)[0][0])(2.0).tolist()
-0.25
"""

from pe_jax.scaling._by_length import dynamic_ntk
from pe_jax.scaling._by_length import dynamic_ntk_frequencies
from pe_jax.scaling._by_length import dynamic_yarn
from pe_jax.scaling._by_length import dynamic_yarn_frequencies
from pe_jax.scaling._by_length import longrope
from pe_jax.scaling._by_length import longrope_attention_factor
from pe_jax.scaling._by_length import longrope_frequencies
from pe_jax.scaling._by_parts import llama3
from pe_jax.scaling._by_parts import llama3_frequencies
from pe_jax.scaling._by_parts import ntk_by_parts
from pe_jax.scaling._by_parts import ntk_by_parts_frequencies
from pe_jax.scaling._by_parts import yarn
from pe_jax.scaling._by_parts import yarn_attention_factor
from pe_jax.scaling._by_parts import yarn_frequencies
from pe_jax.scaling._by_parts import yarn_ramp
from pe_jax.scaling._fixed import default
from pe_jax.scaling._fixed import default_frequencies
from pe_jax.scaling._fixed import given
from pe_jax.scaling._fixed import given_frequencies
from pe_jax.scaling._fixed import linear
from pe_jax.scaling._fixed import linear_frequencies
from pe_jax.scaling._fixed import ntk
from pe_jax.scaling._fixed import ntk_fixed
from pe_jax.scaling._fixed import ntk_fixed_frequencies
from pe_jax.scaling._fixed import ntk_frequencies
from pe_jax.scaling._fixed import ntk_mixed
from pe_jax.scaling._fixed import ntk_mixed_frequencies
from pe_jax.scaling._fixed import proportional
from pe_jax.scaling._fixed import proportional_frequencies
from pe_jax.scaling._rule import from_frequencies
from pe_jax.scaling._rule import inverse_frequencies
from pe_jax.scaling._rule import Rule

__all__ = (
    'Rule',
    'default',
    'default_frequencies',
    'dynamic_ntk',
    'dynamic_ntk_frequencies',
    'dynamic_yarn',
    'dynamic_yarn_frequencies',
    'from_frequencies',
    'given',
    'given_frequencies',
    'inverse_frequencies',
    'linear',
    'linear_frequencies',
    'llama3',
    'llama3_frequencies',
    'longrope',
    'longrope_attention_factor',
    'longrope_frequencies',
    'ntk',
    'ntk_by_parts',
    'ntk_by_parts_frequencies',
    'ntk_fixed',
    'ntk_fixed_frequencies',
    'ntk_frequencies',
    'ntk_mixed',
    'ntk_mixed_frequencies',
    'proportional',
    'proportional_frequencies',
    'yarn',
    'yarn_attention_factor',
    'yarn_frequencies',
    'yarn_ramp',
)
