# SPDX-License-Identifier: Apache-2.0
"""The decoder: embedding, blocks, logits."""

from collections.abc import Callable
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

import pe_jax
from pe_jax.transformer._blocks import Block
from pe_jax.transformer._blocks import make_norm
from pe_jax.transformer._config import Config
from pe_jax.transformer._layers import as_params
from pe_jax.transformer._layers import LayerEncodings
from pe_jax.transformer._layers import plan
from pe_jax.transformer._parts import dropout

Array = jax.Array


class Decoder(nnx.Module):
  """A stack of blocks in which a token sees those before it.

  One trained number, `gain`, multiplies the logits. It starts at D ** -0.25: from 1, an untrained
  model would predict each token to be followed by itself, whose row its hidden state still holds;
  from D ** -0.5 it would learn more slowly.

  Args:
    config: sizes and parts.
    encoding: the encoding of all layers, or a tuple that is repeated over the layers, such as
      (rope(base=1e4),) * 5 + (rope(base=1e6),) or (rope(), rope(), rope(), none()).
    rngs: source of the initial parameters; those outside the encoding are the same for any.

  Raises:
    ValueError: more encodings or windows than layers, or encodings that differ on the embedding.
  """

  def __init__(
      self, config: Config, encoding: pe_jax.Encoding | tuple[pe_jax.Encoding, ...], *, rngs
  ):
    keys = jax.random.split(rngs.params(), 5)
    normal = functools.partial(jax.random.normal, shape=(config.vocab, config.model))
    self.config = config
    self.encoding, layers = plan(config, encoding)
    self.embedding = nnx.Param(normal(keys[0]) * config.model**-0.5)
    self.encoding_params = nnx.data(as_params(self.encoding.init(keys[1], config.dims)))
    self.layer_encodings = LayerEncodings(config, layers, rngs=nnx.Rngs(keys[2]))
    self.blocks = jax.vmap(lambda key: Block(config, rngs=nnx.Rngs(key)))(
        jax.random.split(keys[3], config.layers)
    )
    self.norm = make_norm(config) if config.residual == 'pre' else None
    self.out = None if config.tie else nnx.Param(normal(keys[4]) * config.model**-0.5)
    self.gain = nnx.Param(jnp.full((), config.model**-0.25, jnp.float32))

  def __call__(
      self,
      tokens: Array,
      *,
      positions: Any = None,
      segments: Array | None = None,
      length: int | Array | None = None,
      dropout_key: Array | None = None,
      kernel: Callable | None = None,
  ) -> Array:
    """Computes the logits of the token after each token.

    Args:
      tokens: int, shape [..., T].
      positions: what the encoding reads, [..., T], or [T] for all rows; 0, 1, 2, ... unless given,
        from 0 again in every segment.
      segments: int, shape [..., T]. Tokens of one segment see each other; 0 is padding.
      length: what length-dependent encodings read; see `pe_jax.attend`.
      dropout_key: drops activations where given.
      kernel: how attention is computed; see `pe_jax.attend`.

    Returns:
      Logits, float32, shape [..., T, V]; NaN in a row that has a token above V - 1.

    Raises:
      ValueError: tokens that are not integers, segments of another shape, or more tokens than the
        encoding has positions.
    """
    config = self.config
    positions = self._positions(tokens, positions, segments)
    embedding_key, layer_keys = _keys(dropout_key, config.layers)

    x = jnp.take(self.embedding.astype(config.dtype), tokens, axis=0) * config.model**0.5
    if self.encoding.embed is not None:
      params = nnx.as_pure(self.encoding_params)
      x = self.encoding.embed(pe_jax.assemble(self.encoding, params, config.dims), x, positions)
    x = dropout(x, config.dropout, embedding_key)

    attend = self.layer_encodings.attention(
        mask=pe_jax.Mask(causal=True, q_segments=segments, k_segments=segments),
        positions=positions,
        length=length,
        kernel=kernel,
    )

    def run(x, layer):
      i, block, key = layer
      return block(x, functools.partial(attend, i), key), None

    run = jax.checkpoint(run, prevent_cse=False) if config.remat else run
    x, _ = jax.lax.scan(run, x, (jnp.arange(config.layers), self.blocks, layer_keys))
    x = x if self.norm is None else self.norm(x)

    out = (self.embedding if self.out is None else self.out).astype(x.dtype)
    return self.gain * jnp.einsum('...td,vd->...tv', x, out, preferred_element_type=jnp.float32)

  def _positions(self, tokens: Array, positions: Any, segments: Array | None) -> Any:
    """Checks the inputs; returns the positions, or those that tokens have by default."""
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(f'tokens have dtype {tokens.dtype}: they must be integers.')
    if segments is not None and segments.shape != tokens.shape:
      raise ValueError(f'segments {segments.shape} must have the shape of tokens {tokens.shape}.')
    if positions is not None:
      return positions
    if segments is not None:
      return pe_jax.positions.from_segments(segments)
    for encoding in (self.encoding, *(layer.encoding for layer in self.layer_encodings.layers)):
      if encoding.max_length is not None and tokens.shape[-1] > encoding.max_length:
        raise ValueError(
            f'{encoding} has {encoding.max_length} positions for {tokens.shape[-1]} tokens: give '
            'fewer tokens, or their positions.'
        )
    return jnp.arange(tokens.shape[-1])


def _keys(key: Array | None, layers: int) -> tuple[Array | None, Array | None]:
  """Splits a dropout key into that of the embedding and those of the layers, where there is one."""
  if key is None:
    return None, None
  keys = jax.random.split(key, 1 + layers)
  return keys[0], keys[1:]
