# SPDX-License-Identifier: Apache-2.0
"""A minimal decoder-only Transformer in Flax NNX, for any encoding or pattern of encodings.

A model is a pytree that nothing mutates, so `jax.jit`, `jax.grad`, `jax.vmap` and optax take it as
it is; `nnx.split` gives the same arrays as a dict. Its leaves are the trained arrays, float32. What
an encoding does not train is no leaf: it is made anew in every call. A training step:

>>> from flax import nnx
>>> import jax
>>> import jax.numpy as jnp
>>> import optax
>>> import pe_jax
>>> config = Config(vocab=16, layers=2, model=8, heads=2)
>>> model = Decoder(config, pe_jax.rope(), rngs=nnx.Rngs(jax.random.key(0)))
>>> optimizer = optax.adamw(1e-2)
>>> def loss(model, tokens):
...   logits = model(tokens[:, :-1])
...   return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
>>> @jax.jit
... def step(model, state, tokens):
...   gradient = jax.grad(loss)(model, tokens)
...   updates, state = optimizer.update(gradient, state, model)
...   return optax.apply_updates(model, updates), state
>>> tokens = jnp.arange(12).reshape(2, 6)
>>> trained, state = step(model, optimizer.init(model), tokens)
>>> bool(loss(trained, tokens) < loss(model, tokens))
True
"""

from pe_jax.transformer._blocks import Attention
from pe_jax.transformer._blocks import Block
from pe_jax.transformer._blocks import FeedForward
from pe_jax.transformer._config import Config
from pe_jax.transformer._decoder import Decoder
from pe_jax.transformer._layers import LayerEncodings
from pe_jax.transformer._parts import LayerNorm
from pe_jax.transformer._parts import Linear
from pe_jax.transformer._parts import RMSNorm

__all__ = (
    'Attention',
    'Block',
    'Config',
    'Decoder',
    'FeedForward',
    'LayerEncodings',
    'LayerNorm',
    'Linear',
    'RMSNorm',
)
