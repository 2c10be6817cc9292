# SPDX-License-Identifier: Apache-2.0
"""The sizes and the parts of a Transformer, as numbers and names that a config file can hold."""

import dataclasses

import jax

import pe_jax
from pe_jax._bind import check_choice
from pe_jax._bind import check_sizes
from pe_jax.transformer import _parts

RESIDUALS = {'pre': _parts.pre_norm, 'post': _parts.post_norm}
ACTIVATIONS = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu, 'swiglu': _parts.swiglu}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The sizes and the parts of a Transformer.

  Attributes:
    vocab: number V of tokens.
    layers: number of blocks.
    model: width D of the hidden state.
    heads: number N of query heads.
    kv_heads: number K of key and value heads, N unless given.
    head_dim: width H of a head, D / N unless given.
    hidden: width of the feed-forward layers, 4 D unless given.
    norm: 'rms' or 'layer'.
    residual: 'pre', with one more norm at the end, or 'post'.
    activation: 'relu', 'gelu', or 'swiglu', which has a second input matrix.
    bias: whether projections and layer norms have biases.
    tie: whether the embedding is also the output matrix.
    dropout: part of the embedding and of each sublayer's output that a `dropout_key` drops.
    dtype: of the hidden states; parameters, norms, softmax and logits are float32.
    remat: whether the backward pass computes each block again instead of keeping its insides.
    sharing: 'shared' for one copy of an encoding's arrays for all layers, 'untied' for one each.
    window: tokens that a query sees, itself included; a tuple is repeated over the layers.

  Raises:
    ValueError: sizes that are not positive or do not divide, or no such part.
  """

  vocab: int
  layers: int
  model: int
  heads: int
  kv_heads: int | None = None
  head_dim: int | None = None
  hidden: int | None = None
  norm: str = 'rms'
  residual: str = 'pre'
  activation: str = 'gelu'
  bias: bool = False
  tie: bool = True
  dropout: float = 0.0
  dtype: str = 'float32'
  remat: bool = False
  sharing: str = 'shared'
  window: int | None | tuple[int | None, ...] = None

  def __post_init__(self):
    sizes = {'vocab': self.vocab, 'layers': self.layers, 'model': self.dims.model}
    if self.hidden is not None:
      sizes['hidden'] = self.hidden
    check_sizes(**sizes)
    choices = {
        'norm': ('rms', 'layer'),
        'residual': RESIDUALS,
        'activation': ACTIVATIONS,
        'dtype': ('float32', 'bfloat16', 'float16'),
        'sharing': ('shared', 'untied'),
    }
    for name, allowed in choices.items():
      check_choice(name, getattr(self, name), allowed)
    if not 0 <= self.dropout < 1:
      raise ValueError(f'dropout={self.dropout!r} must be at least 0 and below 1.')

  @property
  def dims(self) -> pe_jax.Dims:
    """The sizes that encodings see."""
    return pe_jax.Dims(self.model, self.heads, self.kv_heads, self.head_dim)
