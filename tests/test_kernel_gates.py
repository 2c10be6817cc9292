# SPDX-License-Identifier: Apache-2.0
"""What blockwise attention needs: temporary bytes of compiled programs, against all the logits.

All of it is deterministic for a version of jax; nothing is run. D2 to D5 are the names that the
project's list of performance goals gives them.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from tests import pairwise

HEADS, WIDTH = 8, 64
DIMS = pe_jax.Dims(model=HEADS * WIDTH, heads=HEADS)


def attention(encoding, kernel, q, k, v, params):
  positions = jnp.arange(q.shape[1])
  options = {'encoding': encoding, 'params': params, 'kernel': kernel}
  return pe_jax.attend(q, k, v, positions, positions, mask=Mask(causal=True), **options)


def gradient(encoding, kernel, *args):
  def loss(*args):
    return attention(encoding, kernel, *args).sum()

  return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(*args)


def temporaries(fn, length, params):
  x = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
  return jax.jit(fn).lower(x, x, x, params).compile().memory_analysis().temp_size_in_bytes


@functools.cache
def cost(encoding, kernel, length, what=attention):
  params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), DIMS))
  return temporaries(functools.partial(what, encoding, kernel), length, params)


# With the bound for the output, and for the output with all gradients, over jax.nn with the bias.
BIASES = [
    (pe_jax.alibi_learned(), 0.04, 0.03),
    (pe_jax.t5(), 0.04, 0.03),
    (pe_jax.kerple_log(), 0.04, 0.03),
    (pairwise.table(reach=2048), 0.04, 0.03),
    (pe_jax.sandwich(), 0.04, 0.03),
    (pe_jax.fire(), 0.02, 0.02),
]
AS_USUAL = {pe_jax.fire(): pairwise.fire_of_arrays()}  # what goes into jax.nn, where it is another
each_bias = pytest.mark.parametrize('encoding, forward, backward', BIASES, ids=lambda x: repr(x))


@each_bias
def test_a_bias_needs_no_array_of_the_logits(encoding, forward, backward):  # D2 and D3
  del backward
  theirs = cost(AS_USUAL.get(encoding, encoding), kernels.xla, 2048)
  assert cost(encoding, kernels.blockwise, 2048) <= forward * theirs


@each_bias
def test_nor_do_its_gradients(encoding, forward, backward):
  del forward
  theirs = cost(AS_USUAL.get(encoding, encoding), kernels.xla, 2048, gradient)
  assert cost(encoding, kernels.blockwise, 2048, gradient) <= backward * theirs


@pytest.mark.parametrize('what', [attention, gradient], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize('encoding', [pe_jax.alibi_learned(), pe_jax.shaw()], ids=repr)
def test_memory_grows_with_the_length_and_no_faster(encoding, what):  # D4
  short, long = (cost(encoding, kernels.blockwise, n, what) for n in (2048, 8192))
  assert long <= 4.2 * short
  short, long = (cost(encoding, kernels.blockwise, n, what) for n in (1024, 4096))
  assert long <= 4.2 * short


def test_long_rows_are_tiled_unasked():
  t5 = pe_jax.t5()
  assert cost(t5, None, 2048) == cost(t5, kernels.blockwise, 2048)


def skewed(q, k, v, params):
  """Music Transformer as it is usually written: q . r for every distance, padded and reshaped."""
  length = q.shape[1]
  by_row = jnp.einsum('btnh,rh->bntr', q, params['vectors'])
  padded = jnp.pad(by_row, ((0, 0), (0, 0), (0, 0), (1, 0)))
  shifted = padded.reshape(1, HEADS, length + 1, length)[:, :, 1:]
  logits = (jnp.einsum('btnh,bsnh->bnts', q, k) + shifted) * WIDTH**-0.5
  index = jnp.arange(length)
  causal = (index[None, :] <= index[:, None])[None, None]
  weights = jax.nn.softmax(jnp.where(causal, logits, jnp.finfo(jnp.float32).min))
  return jnp.einsum('bnts,bsnh->btnh', weights, v)


@pytest.mark.parametrize('length, bound', [(512, 0.3), (2048, 0.05)])
@pytest.mark.parametrize(
    'encoding',
    [pe_jax.shaw(), pe_jax.music_transformer(), pe_jax.transformer_xl()],
    ids=repr,
)
def test_terms_of_content_need_less_than_skewing(encoding, length, bound):  # D5
  vectors = {'vectors': jax.ShapeDtypeStruct((length, WIDTH), jnp.float32)}
  assert cost(encoding, kernels.blockwise, length) <= bound * temporaries(skewed, length, vectors)


def test_packing_needs_no_array_of_the_mask():
  def packed(segments):
    x = jnp.ones((1, 4096, HEADS, WIDTH))
    mask = Mask(causal=True, q_segments=segments, k_segments=segments)
    positions = pe_jax.positions.from_segments(segments)
    options = {'encoding': pe_jax.alibi(), 'params': {}, 'kernel': kernels.blockwise}
    return pe_jax.attend(x, x, x, positions, positions, mask=mask, **options)

  segments = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
  program = jax.jit(packed).lower(segments).compile()
  # Five arrays of the size of q; one array of the logits is sixteen times as much.
  assert program.memory_analysis().temp_size_in_bytes <= 5 * 4 * 4096 * HEADS * WIDTH


@pytest.mark.parametrize('encoding', pairwise.PAIRWISE, ids=repr)
def test_no_large_constant_enters_a_program(encoding):  # jax-ml/jax #14655
  params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), DIMS))
  x = jax.ShapeDtypeStruct((1, 4096, HEADS, WIDTH), jnp.float32)
  coords = jax.ShapeDtypeStruct((1, HEADS, 4096) if encoding.place else (4096,), jnp.float32)

  def run(q, k, v, coords, params):
    options = {'mask': Mask(causal=True), 'kernel': kernels.blockwise}
    return pe_jax.attend(q, k, v, coords, coords, encoding=encoding, params=params, **options)

  assert len(jax.jit(run).lower(x, x, x, coords, params).as_text()) < 2**20
