# SPDX-License-Identifier: Apache-2.0
"""One layer of a Transformer."""

from collections.abc import Callable
import functools

from flax import nnx
import jax

from pe_jax.transformer._config import ACTIVATIONS
from pe_jax.transformer._config import Config
from pe_jax.transformer._config import RESIDUALS
from pe_jax.transformer._parts import dropout
from pe_jax.transformer._parts import LayerNorm
from pe_jax.transformer._parts import Linear
from pe_jax.transformer._parts import RMSNorm

Array = jax.Array


def make_norm(config: Config) -> RMSNorm | LayerNorm:
  """Makes the norm that a config names."""
  if config.norm == 'rms':
    return RMSNorm(config.model)
  return LayerNorm(config.model, bias=config.bias)


class Attention(nnx.Module):
  """Queries, keys and values of x, what they attend to, and its projection."""

  def __init__(self, config: Config, *, rngs: nnx.Rngs):
    dims = config.dims
    linear = functools.partial(Linear, bias=config.bias, rngs=rngs)
    self.query = linear((dims.model,), (dims.heads, dims.head_dim))
    self.key = linear((dims.model,), (dims.kv_heads, dims.head_dim))
    self.value = linear((dims.model,), (dims.kv_heads, dims.head_dim))
    self.out = linear((dims.heads, dims.head_dim), (dims.model,))

  def __call__(self, x: Array, attend: Callable) -> Array:
    """Maps x [..., T, D] to the same shape; attend takes x, q, k and v."""
    return self.out(attend(x, self.query(x), self.key(x), self.value(x)))


class FeedForward(nnx.Module):
  """activation(x W_1 + b_1) W_2 + b_2."""

  def __init__(self, config: Config, *, rngs: nnx.Rngs):
    linear = functools.partial(Linear, bias=config.bias, rngs=rngs)
    hidden = 4 * config.model if config.hidden is None else config.hidden
    inputs = 2 if config.activation == 'swiglu' else 1
    self.activation = ACTIVATIONS[config.activation]
    self.inner = linear((config.model,), (inputs * hidden,))
    self.out = linear((hidden,), (config.model,))

  def __call__(self, x: Array) -> Array:
    """Maps each token of x [..., T, D] for itself."""
    return self.out(self.activation(self.inner(x)))


class Block(nnx.Module):
  """Attention, then feed-forward, each with a residual and a norm."""

  def __init__(self, config: Config, *, rngs: nnx.Rngs):
    self.residual = RESIDUALS[config.residual]
    self.dropout = config.dropout
    self.attention_norm = make_norm(config)
    self.attention = Attention(config, rngs=rngs)
    self.feed_forward_norm = make_norm(config)
    self.feed_forward = FeedForward(config, rngs=rngs)

  def __call__(self, x: Array, attend: Callable, dropout_key: Array | None) -> Array:
    """Maps x [..., T, D] to the same shape; attend(x, q, k, v) is all that mixes tokens."""
    first, second = (None, None) if dropout_key is None else jax.random.split(dropout_key)
    x = self.residual(
        x, self.attention_norm, lambda x: dropout(self.attention(x, attend), self.dropout, first)
    )
    return self.residual(
        x, self.feed_forward_norm, lambda x: dropout(self.feed_forward(x), self.dropout, second)
    )
