# SPDX-License-Identifier: Apache-2.0
"""Small decoders for tests, and what runs them without much compilation."""

import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import transformer

T5 = pe_jax.t5(buckets=6, max_distance=8)
SMALL = transformer.Config(vocab=32, layers=3, model=16, heads=4, kv_heads=2)


# Most of the time of these tests is compilation, so XLA is told to think less.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        'xla_backend_optimization_level': 0,
        'xla_llvm_disable_expensive_passes': True,
    },
)


def make(encoding, config=SMALL, *, seed=0):
  """A decoder with random numbers everywhere, so that scales of 1 and biases of 0 are seen too."""
  model = jax.eval_shape(initial, encoding, config, seed)
  rng = np.random.default_rng(seed)

  def fill(path, leaf):
    name = jax.tree_util.keystr(path)
    start = 1.0 if '.scale' in name or '.gain' in name else 0.0
    return jnp.asarray(start + 0.3 * rng.normal(size=leaf.shape), leaf.dtype)

  return jax.tree_util.tree_map_with_path(fill, model)


@functools.partial(quick_jit, static_argnums=(0, 1))
def initial(encoding, config=SMALL, seed=0):
  """A decoder before training."""
  return transformer.Decoder(config, encoding, rngs=nnx.Rngs(jax.random.key(seed)))


@functools.partial(quick_jit, static_argnames='kernel')
def run(model, tokens, **options):
  return model(tokens, **options)


def random_tokens(*shape, vocab=32, seed=1):
  return jax.random.randint(jax.random.key(seed), shape, 0, vocab)


def to_float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(nnx.state(tree)))
