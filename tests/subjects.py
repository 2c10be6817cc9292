# SPDX-License-Identifier: Apache-2.0
"""What the laws look at when a file of pe_jax/encodings is broken."""

import numpy as np

import pe_jax
from pe_jax.testing._subject import Subject
from tests import references
from tests import test_laws
from tests.test_laws import case


def _on_heads(reference: dict, heads: list[int]) -> dict:
  """The references of `bias`, `logits` and `value`, on some heads."""

  def bias(params, q, *rest):
    out = np.zeros((len(q), q.shape[2], q.shape[1], rest[0].shape[1]))
    out[:, heads] = reference['bias'](params, q, *rest)[:, heads]
    return out

  def logits(params, logits, *rest):
    out = logits.copy()
    out[:, heads] = reference['logits'](params, logits, *rest)[:, heads]
    return out

  def value(params, weights, *rest):
    term = reference['value'](params, weights, *rest)
    out = np.zeros_like(term)
    out[:, :, heads] = term[:, :, heads]
    return out

  all_hooks = {'bias': bias, 'logits': logits, 'value': value}
  return {name: hook for name, hook in all_hooks.items() if name in reference}


# The table of test_laws holds every encoding. These reach what its sizes do not: the ends of short
# tables, odd widths, part of the channels, two options at once.
_SHARPER = (
    case(pe_jax.alibi, slopes=(0.5, 0.3, 0.9, 0.1), reference=references.ALIBI_LEARNED),
    case(pe_jax.concatenated, width=5, base=500.0, reference=references.concatenated(5, 500.0)),
    case(pe_jax.cope, max_position=3, reference=references.COPE),
    case(pe_jax.fox, gate_bias=2.0, reference=references.FOX),
    case(
        pe_jax.on_heads,
        pe_jax.shaw(),
        heads=(2, 3),
        reference=_on_heads(references.SHAW, [2, 3]),
        options={'heads': [(0, 1)]},
    ),
    case(
        pe_jax.on_heads,
        pe_jax.cope(),
        heads=(2, 3),
        reference=_on_heads(references.COPE, [2, 3]),
        options={'heads': [(0, 1)]},
    ),
    case(
        pe_jax.rope,
        layout='interleaved',
        width=6,
        base=500.0,
        reference=references.rope(500.0, 6, 'interleaved'),
    ),
    case(pe_jax.shaw, max_distance=2, reference=references.SHAW),
    case(
        pe_jax.sinusoidal,
        base=500.0,
        reference=references.sinusoidal(500.0),
        dims=test_laws.SIX_HEADS,
    ),
    case(pe_jax.t5, buckets=9, max_distance=30, reference=references.t5(9, 30)),
    case(
        pe_jax.timing_signal,
        min_timescale=2.0,
        max_timescale=300.0,
        reference=references.timing_signal(2.0, 300.0),
        dims=test_laws.SIX_HEADS,
    ),
)


def subjects(module: str, with_references: bool = True) -> list[Subject]:
  """Returns all cases of the encodings that a module defines."""
  return [
      Subject(
          factory=one.factory,
          dims=one.dims,
          options=one.options,
          reference=one.reference if with_references else {},
      )
      for one in (*test_laws.CASES.values(), *_SHARPER)
      if one.factory.func.__module__ == module
  ]
