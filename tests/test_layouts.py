# SPDX-License-Identifier: Apache-2.0
"""Half and interleaved layouts: projections and code change together, and scores stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import layouts

RNG = np.random.default_rng(0)
HEADS, KV_HEADS, HEAD_DIM, MODEL = 4, 2, 8, 24


def test_33_the_order_of_rows():
  for size, order in {8: [0, 4, 1, 5, 2, 6, 3, 7], 4: [0, 2, 1, 3]}.items():
    np.testing.assert_array_equal(layouts.half_to_interleaved(np.arange(size)), order)
  two = layouts.half_to_interleaved(np.arange(16), head_dim=8)
  np.testing.assert_array_equal(two, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15])
  part = layouts.half_to_interleaved(np.arange(6), width=4, part='trailing')
  np.testing.assert_array_equal(part, [0, 1, 2, 4, 3, 5])


@pytest.mark.parametrize('part, width', [('leading', None), ('leading', 4), ('trailing', 6)])
@pytest.mark.parametrize('shape, axis', [((3, 16), -1), ((16, 3), 0), ((16,), 0), ((2, 16, 5), 1)])
def test_each_undoes_the_other(part, width, shape, axis):
  x = RNG.normal(size=shape)
  options = {'head_dim': 8, 'part': part, 'width': width, 'axis': axis}
  there = layouts.half_to_interleaved(x, **options)
  assert there.dtype == x.dtype and isinstance(there, np.ndarray)
  assert (there != x).any()
  np.testing.assert_array_equal(layouts.interleaved_to_half(there, **options), x)
  traced = jax.jit(lambda x: layouts.half_to_interleaved(x, **options))(x)
  np.testing.assert_array_equal(traced, there.astype(np.float32))


def scores(layout, x, weights, part, width):
  """Returns q . k of a grouped attention whose weights are torch's, [out, in]."""
  encoding = pe_jax.rope(layout=layout, part=part, width=width)
  dims = pe_jax.Dims(model=MODEL, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
  params = encoding.constants(dims)
  positions = jnp.arange(x.shape[1])[None]
  turned = []
  for name, heads, hook in (('q', HEADS, encoding.query), ('k', KV_HEADS, encoding.key)):
    y = x @ weights[name].T + weights[f'{name}_bias']
    turned.append(hook(params, y.reshape(1, -1, heads, HEAD_DIM), positions, None))
  q, k = turned[0], jnp.repeat(turned[1], HEADS // KV_HEADS, axis=-2)
  return jnp.einsum('btnh,bsnh->bnts', q, k)


@pytest.mark.parametrize('part, width', [('leading', None), ('trailing', 4)])
def test_33_scores_stay_when_weights_and_code_change_together(part, width):
  x = jnp.asarray(RNG.normal(size=(1, 51, MODEL)), jnp.float32)
  sizes = {'q': HEADS * HEAD_DIM, 'k': KV_HEADS * HEAD_DIM}
  half = {name: RNG.normal(size=(size, MODEL)) / 5 for name, size in sizes.items()}
  half |= {f'{name}_bias': RNG.normal(size=(1, 1, size)) for name, size in sizes.items()}
  half = {name: value.astype(np.float32) for name, value in half.items()}
  options = {'head_dim': HEAD_DIM, 'part': part, 'width': width}
  interleaved = {
      name: layouts.half_to_interleaved(value, axis=-1 if 'bias' in name else 0, **options)
      for name, value in half.items()
  }
  want = scores('half', x, half, part, width)
  np.testing.assert_allclose(scores('interleaved', x, interleaved, part, width), want, atol=2e-5)
  assert np.abs(scores('interleaved', x, half, part, width) - want).max() > 0.1
  # Keys permuted as if their heads were the queries', half as wide.
  wrong = layouts.half_to_interleaved(half['k'], head_dim=HEAD_DIM // 2, axis=0)
  wrong = {**interleaved, 'k': wrong}
  assert np.abs(scores('interleaved', x, wrong, part, width) - want).max() > 0.1


@pytest.mark.parametrize(
    'options, says',
    [
        ({'head_dim': 6}, 'axis -1 has 16 channels, no multiple of head_dim=6'),
        ({'width': 5}, 'width=5 must be even'),
        ({'head_dim': 8, 'width': 10}, 'at most head_dim=8'),
        ({'part': 'middle'}, "part='middle': choose"),
    ],
)
def test_what_cannot_be_converted_is_named(options, says):
  for convert in (layouts.half_to_interleaved, layouts.interleaved_to_half):
    with pytest.raises(ValueError, match=says):
      convert(np.zeros((2, 16)), **options)
