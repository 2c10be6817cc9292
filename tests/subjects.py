# SPDX-License-Identifier: Apache-2.0
"""What the laws look at when a file of pe_jax/encodings is broken."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.positions import expand
from pe_jax.testing._subject import Subject
from tests import references
from tests import references_pairwise
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


def _of_rows(reference: dict, rows: int) -> dict:
  """The references, which refuse a table of another number of rows."""

  def strict(hook):
    def run(params, *rest):
      if {len(table) for table in params.values()} != {rows}:
        raise ValueError(f'the tables must have {rows} rows.')
      return hook(params, *rest)

    return run

  return {name: strict(hook) for name, hook in reference.items()}


# The table of test_laws holds every encoding. These reach what its sizes do not: the ends of short
# tables, odd widths, part of the channels, two options at once.
_SHARPER = (
    case(pe_jax.alibi, slopes=(0.5, 0.3, 0.9, 0.1), reference=references.ALIBI_LEARNED),
    case(pe_jax.concatenated, width=5, base=500.0, reference=references.concatenated(5, 500.0)),
    case(pe_jax.cope, reference=_of_rows(references.COPE, 64)),
    case(pe_jax.cope, max_position=3, reference=_of_rows(references.COPE, 3)),
    case(pe_jax.fire, width=3, c=2.0, reference=references_pairwise.FIRE),
    case(pe_jax.fox, gate_bias=2.0, reference=references.FOX),
    case(pe_jax.log_n, trained_length=17.3, reference=references.log_n(17.3)),
    case(
        pe_jax.music_transformer,
        max_distance=3,
        reference=references_pairwise.MUSIC_TRANSFORMER,
    ),
    case(
        pe_jax.on_heads,
        pe_jax.shaw(),
        heads=(0, 1),
        reference=_on_heads(references.SHAW, [0, 1]),
        options={'heads': [(2, 3)]},
    ),
    case(
        pe_jax.on_heads,
        pe_jax.cope(),
        heads=(0, 1),
        reference=_on_heads(references.COPE, [0, 1]),
        options={'heads': [(2, 3)]},
    ),
    case(
        pe_jax.rope,
        layout='interleaved',
        width=6,
        base=500.0,
        reference=references.rope(500.0, 6, 'interleaved'),
    ),
    case(
        pe_jax.sandwich,
        width=6,
        base=500.0,
        reference=references_pairwise.sandwich(6, 500.0),
        dims=test_laws.SIX_HEADS,
    ),
    case(pe_jax.shaw, reference=_of_rows(references.SHAW, 33)),
    case(pe_jax.shaw, max_distance=200, reference=_of_rows(references.SHAW, 401)),
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
    case(
        pe_jax.transformer_xl,
        width=6,
        base=500.0,
        reference=references_pairwise.transformer_xl(500.0),
        dims=test_laws.SIX_HEADS,
    ),
)


# --- Public functions that no hook calls, as encodings that do -----------------------------------


def _shift(params, x, positions):
  """Adds PE(p) as the shift of PE(p - 5), with frequencies from the wavelengths."""
  del params
  width = x.shape[-1]
  frequencies = 2 * np.pi / pe_jax.sinusoidal_wavelengths(width)
  before = pe_jax.sinusoidal_embedding(positions - 5, frequencies, width=width)
  after = jnp.einsum('...c,dc->...d', before, pe_jax.sinusoidal_shift(5, width))
  return (x + expand(after, x.ndim)).astype(x.dtype)


def _shifted():
  return pe_jax.Encoding(name='shifted', embed=_shift, absolute=True)


def _time(params, x, positions):
  """Adds the timing signal by the functions' own defaults."""
  del params
  width = x.shape[-1]
  frequencies = pe_jax.timescale_frequencies(width)
  encoded = pe_jax.sinusoidal_embedding(positions, frequencies, width=width, order='concat')
  return (x + expand(encoded, x.ndim)).astype(x.dtype)


def _timed():
  return pe_jax.Encoding(name='timed', embed=_time, absolute=True)


_FEW, _MANY = 40, 600  # rows of the trained table, and of the stretched one


def _table(key, dims):
  return {'table': jax.random.normal(key, (_FEW, dims.model))}


def _stretch(params, x, positions):
  table = pe_jax.resize_table(params['table'], length=_MANY)
  return (x + expand(pe_jax.learned_embedding(table, positions), x.ndim)).astype(x.dtype)


def _stretched():
  return pe_jax.Encoding(
      name='stretched', init=_table, embed=_stretch, absolute=True, max_length=_MANY
  )


def _stretch_reference(params, x, positions):
  """Reads the table at the middle of each row's share of it, between rows by their distance."""
  out, table = x.copy(), params['table']
  for b, t in np.ndindex(*positions.shape):
    at = min(max((positions[b, t] + 0.5) * _FEW / _MANY - 0.5, 0), _FEW - 1)
    low = int(at)
    high = min(low + 1, _FEW - 1)
    out[b, t] += (1 - (at - low)) * table[low] + (at - low) * table[high]
  return out


_FUNCTIONS = {
    'pe_jax.encodings._learned': (case(_stretched, reference={'embed': _stretch_reference}),),
    'pe_jax.encodings._sinusoidal': (
        case(_shifted, reference=references.sinusoidal()),
        case(_timed, reference=references.timing_signal()),
    ),
}


def subjects(module: str, with_references: bool = True) -> list[Subject]:
  """Returns all cases of the encodings that a module defines."""
  table = (*test_laws.CASES.values(), *_SHARPER)
  cases = [one for one in table if one.factory.func.__module__ == module]
  return [
      Subject(
          factory=one.factory,
          dims=one.dims,
          options=one.options,
          reference=one.reference if with_references else {},
      )
      for one in (*cases, *_FUNCTIONS.get(module, ()))
  ]
