# SPDX-License-Identifier: Apache-2.0
"""A training layer, and as a program: its cycles on a v5e with each encoding, printed as JSON.

libtpu reads the flags that make it write its plans once, when it is loaded: hence a program.
"""

import functools
import json
import pathlib
import tempfile

from flax import nnx
import jax
import jax.numpy as jnp

from experiments.bench import topology
import pe_jax
from pe_jax import Mask
from pe_jax import transformer
from pe_jax.transformer import _layers

TOKENS, WIDTH, HEADS = 2048, 2048, 16


def layer(encoding, kernel):
  """Makes attention with its four projections, forward and backward, and the shapes it takes."""
  config = transformer.Config(vocab=8, layers=1, model=WIDTH, heads=HEADS, dtype='bfloat16')

  def make():
    rngs = nnx.Rngs(jax.random.key(0))
    layers = _layers.plan(config, encoding)[1]
    attention = transformer.Attention(config, rngs=rngs)
    return attention, transformer.LayerEncodings(config, layers, rngs=rngs)

  def loss(modules, x):
    attention, encodings = modules
    attend = encodings.attention(
        mask=Mask(causal=True), positions=jnp.arange(TOKENS), length=None, kernel=kernel
    )
    return jnp.square(attention(x, functools.partial(attend, 0)).astype(jnp.float32)).sum()

  x = jax.ShapeDtypeStruct((1, TOKENS, WIDTH), jnp.bfloat16)
  return jax.grad(loss, argnums=(0, 1)), (jax.eval_shape(make), x)


def main():
  with tempfile.TemporaryDirectory() as directory:
    chip = topology.Chip('tpu:v5e', pathlib.Path(directory) / 'dump')
    cycles = {}
    for encoding in (pe_jax.none(), pe_jax.alibi(), pe_jax.t5()):
      cycles[repr(encoding)] = chip.compile(*layer(encoding, None))['cycles']
  print(json.dumps(cycles))


if __name__ == '__main__':
  main()
