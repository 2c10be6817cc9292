# SPDX-License-Identifier: Apache-2.0
"""Every encoding of pe_jax under every law."""

import functools
from typing import NamedTuple

import pytest

import pe_jax
from pe_jax import scaling
from pe_jax import testing
from tests import references
from tests import references_pairwise
from tests import references_scaling
from tests.factories import factories

DIMS = pe_jax.Dims(model=64, heads=4, kv_heads=2, head_dim=16)
SIX_HEADS = pe_jax.Dims(model=63, heads=6, kv_heads=2, head_dim=8)


class Case(NamedTuple):
  factory: functools.partial
  reference: dict
  options: dict = {}
  dims: pe_jax.Dims = DIMS


def case(factory, *args, reference=None, options=None, dims=DIMS, **keywords):
  return Case(functools.partial(factory, *args, **keywords), reference or {}, options or {}, dims)


ROPE_OPTIONS = {
    'layout': 'interleaved',
    'part': 'trailing',
    'scaling': [scaling.linear(factor=2), scaling.ntk(factor=2)],
    'width': 8,
}
DYNAMIC = scaling.dynamic_ntk(factor=2, original_length=64)
DYNAMIC_REFERENCE = references_scaling.rotation(
    lambda width, length: references_scaling.dynamic_ntk(width, 1e4, 2, 64, length)
)
HALVED = pe_jax.bind(pe_jax.positions.interpolate, factor=2)

CASES = {
    'alibi': case(
        pe_jax.alibi, reference=references.ALIBI, options={'slopes': [(0.5, 0.4, 0.3, 0.2)]}
    ),
    'alibi of 6 heads': case(pe_jax.alibi, reference=references.ALIBI, dims=SIX_HEADS),
    'alibi_learned': case(pe_jax.alibi_learned, reference=references.ALIBI_LEARNED),
    'compose': case(pe_jax.compose, pe_jax.rope(), pe_jax.alibi_learned()),
    'compose with place': case(pe_jax.compose, pe_jax.sinusoidal(), pe_jax.fox(), pe_jax.t5()),
    'concatenated': case(pe_jax.concatenated, width=16, reference=references.concatenated(16)),
    'cope': case(pe_jax.cope, reference=references.COPE),
    # Queries stand before the threshold and past it.
    'fire': case(pe_jax.fire, threshold=20, reference=references_pairwise.FIRE),
    'fox': case(pe_jax.fox, reference=references.FOX),
    'kerple_log': case(pe_jax.kerple_log, reference=references_pairwise.KERPLE_LOG),
    'kerple_power': case(pe_jax.kerple_power, reference=references_pairwise.KERPLE_POWER),
    'learned': case(pe_jax.learned, length=512, reference=references.learned()),
    'learned, offset': case(pe_jax.learned, length=64, offset=2, reference=references.learned(2)),
    'log_n': case(pe_jax.log_n, trained_length=16, reference=references.log_n(16)),
    'music_transformer': case(
        pe_jax.music_transformer, reference=references_pairwise.MUSIC_TRANSFORMER
    ),
    'none': case(pe_jax.none),
    'on_heads': case(
        pe_jax.on_heads,
        pe_jax.rope(),
        heads=(2, 3),
        reference=references.on_heads(references.rope(), [2, 3]),
        options={'heads': [(0, 1)]},
    ),
    'rope': case(pe_jax.rope, reference=references.rope(), options=ROPE_OPTIONS),
    'rope, interleaved': case(
        pe_jax.rope, layout='interleaved', reference=references.rope(layout='interleaved')
    ),
    'rope, trailing part': case(
        pe_jax.rope, width=8, part='trailing', reference=references.rope(width=8, part='trailing')
    ),
    'rope, dynamic': case(pe_jax.rope, scaling=DYNAMIC, reference=DYNAMIC_REFERENCE),
    'sandwich': case(pe_jax.sandwich, reference=references_pairwise.SANDWICH),
    'shaw': case(pe_jax.shaw, reference=references.SHAW),
    'sinusoidal': case(
        pe_jax.sinusoidal, reference=references.sinusoidal(), options={'order': 'concat'}
    ),
    'sinusoidal, odd width': case(
        pe_jax.sinusoidal,
        order='concat',
        reference=references.sinusoidal(order='concat'),
        dims=SIX_HEADS,
    ),
    't5': case(pe_jax.t5, reference=references.T5),
    't5, both sides': case(
        pe_jax.t5, bidirectional=True, reference=references.t5(bidirectional=True)
    ),
    'timing_signal': case(pe_jax.timing_signal, reference=references.timing_signal()),
    'transformer_xl': case(
        pe_jax.transformer_xl,
        reference=references_pairwise.TRANSFORMER_XL,
        options={'width': 32},
    ),
    'with_positions': case(pe_jax.with_positions, pe_jax.rope(), HALVED),
    'xpos': case(pe_jax.xpos, reference=references.xpos(), options={'layout': 'interleaved'}),
}


@pytest.mark.parametrize('name', CASES)
def test_encoding_keeps_every_law(name):
  made = CASES[name]
  report = testing.check(made.factory, made.dims, made.reference, options=made.options)
  assert report.ok


def test_every_factory_is_in_the_table():
  assert len(factories()) > 10
  missing = set(factories().values()) - {made.factory.func for made in CASES.values()}
  assert not missing


def test_every_factory_is_compared_with_its_paper():
  free = {pe_jax.compose, pe_jax.none, pe_jax.with_positions}
  compared = {made.factory.func for made in CASES.values() if made.reference}
  assert set(factories().values()) <= compared | free
