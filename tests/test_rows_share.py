# SPDX-License-Identifier: Apache-2.0
"""A bias that the rows of a batch share is never built for each of them."""

import jax
import jax.numpy as jnp
import pytest

import pe_jax
from pe_jax import kernels
from pe_jax import Mask

ROWS, TOKENS, HEADS, WIDTH = 8, 512, 2, 16


def temporaries(encoding, mask, kernel):
  dims = pe_jax.Dims(model=HEADS * WIDTH, heads=HEADS)
  params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))

  def loss(q, k, v, params):
    positions = jnp.arange(TOKENS)
    options = {'encoding': encoding, 'params': params, 'mask': mask, 'kernel': kernel}
    return pe_jax.attend(q, k, v, positions, positions, **options).sum()

  x = jax.ShapeDtypeStruct((ROWS, TOKENS, HEADS, WIDTH), jnp.float32)
  program = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))).lower(x, x, x, params).compile()
  return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize('kernel', [kernels.dense, kernels.xla], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize('encoding', [pe_jax.alibi_learned(), pe_jax.t5(), pe_jax.fire()], ids=repr)
def test_rows_share_a_bias_of_shared_positions(encoding, kernel):
  mask = Mask(causal=True)
  more = temporaries(encoding, mask, kernel) - temporaries(pe_jax.none(), mask, kernel)
  # An array of one row and its gradient; if each row had its own, they would be eight times this.
  assert more <= 4 * (4 * HEADS * TOKENS**2)
