# SPDX-License-Identifier: Apache-2.0
"""A minimal decoder-only Transformer in Flax NNX, for any encoding or pattern of encodings.

A model is a pytree that nothing mutates: `jax.jit`, `jax.value_and_grad`, `jax.vmap` and optax take it
as it is, and so does `nnx.split` where a library wants a dict. Its leaves are the trained arrays, all
float32; what an encoding does not train is made anew in every call. A training step:

>>> import optax
>>> config = Config(vocab=16, layers=2, model=8, heads=2)
>>> model = Decoder(config, pe_jax.rope(), rngs=nnx.Rngs(jax.random.key(0)))
>>> optimizer = optax.adamw(1e-2)
>>> def loss(model, tokens):
...   logits = model(tokens[:, :-1])
...   return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
>>> @jax.jit
... def step(model, state, tokens):
...   value, gradient = jax.value_and_grad(loss)(model, tokens)
...   updates, state = optimizer.update(gradient, state, model)
...   return optax.apply_updates(model, updates), state, value
>>> tokens = jnp.arange(12).reshape(2, 6)
>>> model, state, before = step(model, optimizer.init(model), tokens)
>>> bool(loss(model, tokens) < before)
True
"""

import collections
from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

import pe_jax
from pe_jax.positions import expand

Array = jax.Array
Rngs = nnx.Rngs


# --- Parts ---------------------------------------------------------------------------------------


class Linear(nnx.Module):
  """Computes x W + b, for x [..., *inputs] and W [*inputs, *outputs]."""

  def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], *, bias: bool, rngs: Rngs):
    fan_in = functools.reduce(int.__mul__, inputs)
    kernel = jax.random.normal(rngs.params(), inputs + outputs) * fan_in**-0.5
    self.axes = len(inputs)
    self.kernel = nnx.Param(kernel)
    self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None

  def __call__(self, x: Array) -> Array:
    y = jnp.tensordot(x, self.kernel.astype(x.dtype), self.axes)
    return y if self.bias is None else y + expand(self.bias.astype(x.dtype), y.ndim)


class RMSNorm(nnx.Module):
  """Computes g x / sqrt(mean(x ** 2) + 1e-6), in float32."""

  def __init__(self, config: 'Config'):
    self.scale = nnx.Param(jnp.ones(config.model))

  def __call__(self, x: Array) -> Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (expand(self.scale[...], y.ndim) * y).astype(x.dtype)


class LayerNorm(nnx.Module):
  """Computes g (x - mean(x)) / sqrt(var(x) + 1e-6) + b, in float32."""

  def __init__(self, config: 'Config'):
    self.scale = nnx.Param(jnp.ones(config.model))
    self.bias = nnx.Param(jnp.zeros(config.model)) if config.bias else None

  def __call__(self, x: Array) -> Array:
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    y = expand(self.scale[...], y.ndim) * y
    y = y if self.bias is None else y + expand(self.bias[...], y.ndim)
    return y.astype(x.dtype)


def pre_norm(x: Array, norm: Callable, f: Callable) -> Array:
  """Computes x + f(norm(x))."""
  return x + f(norm(x))


def post_norm(x: Array, norm: Callable, f: Callable) -> Array:
  """Computes norm(x + f(x)), as in Vaswani et al., 2017."""
  return norm(x + f(x))


def swiglu(x: Array) -> Array:
  """Computes silu(a) * b, where a and b are the halves of x."""
  gate, value = jnp.split(x, 2, axis=-1)
  return jax.nn.silu(gate) * value


def dropout(x: Array, rate: float, key: Array | None) -> Array:
  """Drops a part `rate` of x and scales up the rest; x itself without a key."""
  if key is None or rate == 0:
    return x
  return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


_NORMS = {'rms': RMSNorm, 'layer': LayerNorm}
_RESIDUALS = {'pre': pre_norm, 'post': post_norm}
_ACTIVATIONS = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu, 'swiglu': swiglu}
_SHARING = ('shared', 'untied')


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
    residual: 'pre', x + f(norm(x)) and a norm at the end, or 'post', norm(x + f(x)).
    activation: 'relu', 'gelu', or 'swiglu', which has a second input matrix.
    bias: whether projections and layer norms have biases.
    tie: whether the embedding is also the output matrix.
    dropout: part of each sublayer's output and of the embedding that a `dropout_key` drops.
    dtype: of the hidden states. Parameters, norms, softmax and logits are float32.
    remat: whether the backward pass computes each block again instead of keeping its insides.
    sharing: 'shared', one copy of an encoding's arrays for all its layers, or 'untied', one each.
    window: tokens that a query sees, itself included; a tuple is repeated over the layers.

  Raises:
    ValueError: sizes that are not positive or do not divide, or another name for a part.
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
    if self.hidden is None:
      object.__setattr__(self, 'hidden', 4 * self.dims.model)
    for name in ('vocab', 'layers', 'hidden'):
      size = getattr(self, name)
      if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f'{name}={size!r} must be a positive integer.')
    choices = {
        'norm': _NORMS,
        'residual': _RESIDUALS,
        'activation': _ACTIVATIONS,
        'dtype': ('float32', 'bfloat16', 'float16'),
        'sharing': ('shared', 'untied'),
    }
    for name, allowed in choices.items():
      if getattr(self, name) not in allowed:
        raise ValueError(f'{name}={getattr(self, name)!r}: choose one of {list(allowed)}.')
    if not 0 <= self.dropout < 1:
      raise ValueError(f'dropout={self.dropout!r} must be at least 0 and below 1.')

  @property
  def dims(self) -> pe_jax.Dims:
    """The sizes that encodings see."""
    return pe_jax.Dims(self.model, self.heads, self.kv_heads, self.head_dim)


class Layer(NamedTuple):
  """What differs between the layers."""

  encoding: pe_jax.Encoding
  window: int | None


# --- The model -----------------------------------------------------------------------------------


class Attention(nnx.Module):
  """Projects x to queries, keys and values, lets them attend, and projects the result."""

  def __init__(self, config: Config, *, rngs: Rngs):
    dims = config.dims
    linear = functools.partial(Linear, bias=config.bias, rngs=rngs)
    self.query = linear((dims.model,), (dims.heads, dims.head_dim))
    self.key = linear((dims.model,), (dims.kv_heads, dims.head_dim))
    self.value = linear((dims.model,), (dims.kv_heads, dims.head_dim))
    self.out = linear((dims.heads, dims.head_dim), (dims.model,))

  def __call__(self, x: Array, attend: Callable) -> Array:
    return self.out(attend(x, self.query(x), self.key(x), self.value(x)))


class FeedForward(nnx.Module):
  """Computes activation(x W_1) W_2."""

  def __init__(self, config: Config, *, rngs: Rngs):
    linear = functools.partial(Linear, bias=config.bias, rngs=rngs)
    inner = 2 * config.hidden if config.activation == 'swiglu' else config.hidden
    self.activation = config.activation
    self.inner = linear((config.model,), (inner,))
    self.out = linear((config.hidden,), (config.model,))

  def __call__(self, x: Array) -> Array:
    return self.out(_ACTIVATIONS[self.activation](self.inner(x)))


class Block(nnx.Module):
  """Attention, then feed-forward, each with its norm and residual."""

  def __init__(self, config: Config, *, rngs: Rngs):
    norm = _NORMS[config.norm]
    self.config = config
    self.attention_norm = norm(config)
    self.attention = Attention(config, rngs=rngs)
    self.feed_forward_norm = norm(config)
    self.feed_forward = FeedForward(config, rngs=rngs)

  def __call__(self, x: Array, attend: Callable, dropout_key: Array | None) -> Array:
    """Runs one layer on x [..., T, D]; attend(x, q, k, v) is all that mixes tokens."""
    keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
    residual, rate = _RESIDUALS[self.config.residual], self.config.dropout
    attention = lambda h: dropout(self.attention(h, attend), rate, keys[0])
    feed_forward = lambda h: dropout(self.feed_forward(h), rate, keys[1])
    x = residual(x, self.attention_norm, attention)
    return residual(x, self.feed_forward_norm, feed_forward)


class LayerEncodings(nnx.Module):
  """What encodings do in the attention of every layer, and their trained arrays."""

  def __init__(self, config: Config, layers: tuple[Layer, ...], *, rngs: Rngs):
    self.config = config
    self.layers = layers
    params = []
    for encoding, count in self._counts():
      init, key = lambda key: encoding.init(key, config.dims), rngs.params()
      if config.sharing == 'untied':
        init, key = jax.vmap(init), jax.random.split(key, count)
      params.append(jax.tree.map(nnx.Param, init(key)))
    self.params = nnx.data(tuple(params))

  def _counts(self) -> tuple[tuple[pe_jax.Encoding, int], ...]:
    """Returns the different encodings, and how many layers have each."""
    return tuple(collections.Counter(layer.encoding for layer in self.layers).items())

  def attention(self, **options) -> Callable:
    """Returns attend(i, x, q, k, v), what layer i does. i may be traced; for options see `_attend`."""
    untied, arrays = self.config.sharing == 'untied', {}
    for (encoding, count), params in zip(self._counts(), nnx.as_pure(self.params)):
      assemble = functools.partial(pe_jax.assemble, encoding, dims=self.config.dims)
      arrays[encoding] = (jax.vmap(assemble, axis_size=count) if untied else assemble)(params)
    kinds = tuple(dict.fromkeys(self.layers))
    branches = [
        functools.partial(
            _attend, layer=kind, arrays=arrays[kind.encoding], dims=self.config.dims, **options
        )
        for kind in kinds
    ]
    encodings = [layer.encoding for layer in self.layers]
    kind = jnp.array([kinds.index(layer) for layer in self.layers])
    copy = jnp.array([encodings[:i].count(encoding) for i, encoding in enumerate(encodings)])

    def attend(i, x, q, k, v):
      return jax.lax.switch(kind[i], branches, copy[i] if untied else None, x, q, k, v)

    return attend


def _attend(
    copy, x, q, k, v, *, layer, arrays, dims, mask, positions, segments, length, kernel
) -> Array:
  """Lets the tokens of one layer attend; `copy` is the layer's own among stacked arrays, or None."""
  encoding = layer.encoding
  if copy is not None:
    arrays = jax.tree.map(lambda leaf: leaf[copy], arrays)
  if encoding.place is not None:
    batch = x.shape[:-2]
    segments = jnp.ones(x.shape[:-1], jnp.int32) if segments is None else segments
    positions = jax.tree.map(lambda p: jnp.broadcast_to(p, x.shape[:-1]), positions)
    carry = pe_jax.initial_carry(encoding, dims, batch)
    positions, _ = encoding.place(arrays, x, positions, segments, carry)
  return pe_jax.attend(
      q,
      k,
      v,
      positions,
      positions,
      encoding=encoding,
      params=arrays,
      mask=dataclasses.replace(mask, window=layer.window),
      length=length,
      kernel=kernel,
  )


class Decoder(nnx.Module):
  """A stack of blocks in which a token sees those before it.

  Args:
    config: sizes and parts.
    encoding: the encoding of all layers, or a tuple that is repeated over the layers, such as
      (rope(base=1e4),) * 5 + (rope(base=1e6),) or (rope(), rope(), rope(), none()).
    rngs: source of the initial parameters; those of the blocks are the same for every encoding.

  Raises:
    ValueError: more encodings or windows than layers, or encodings that differ on the embedding.
  """

  def __init__(
      self, config: Config, encoding: pe_jax.Encoding | tuple[pe_jax.Encoding, ...], *, rngs: Rngs
  ):
    keys = jax.random.split(rngs.params(), 5)
    normal = functools.partial(jax.random.normal, shape=(config.vocab, config.model))
    self.config = config
    self.encoding, layers = _plan(config, encoding)
    self.embedding = nnx.Param(normal(keys[0]) * config.model**-0.5)
    self.out = None if config.tie else nnx.Param(normal(keys[1]) * config.model**-0.5)
    self.blocks = jax.vmap(lambda key: Block(config, rngs=Rngs(key)))(
        jax.random.split(keys[2], config.layers)
    )
    self.norm = _NORMS[config.norm](config) if config.residual == 'pre' else None
    self.encoding_params = nnx.data(
        jax.tree.map(nnx.Param, self.encoding.init(keys[3], config.dims))
    )
    self.layer_encodings = LayerEncodings(config, layers, rngs=Rngs(keys[4]))

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
    """Computes the logits of the token that follows each token.

    Args:
      tokens: int, shape [..., T].
      positions: what the encoding reads, [..., T], or [T] for all rows; 0, 1, 2, ... unless given,
        from 0 again in every segment.
      segments: int, shape [..., T]. Tokens of one segment see each other; 0 is padding.
      length: what length-dependent encodings read; see `pe_jax.attend`.
      dropout_key: drops activations where given.
      kernel: how attention is computed; see `pe_jax.attend`.

    Returns:
      Logits, float32, shape [..., T, V]; NaN from a token on that is not in the vocabulary.

    Raises:
      ValueError: tokens that are not integers, segments of another shape, or more tokens than the
        encoding has positions.
    """
    config = self.config
    _check_tokens(tokens, segments)
    if positions is None:
      positions = self._positions(tokens, segments)
    embedding_key = layer_keys = None
    if dropout_key is not None:
      keys = jax.random.split(dropout_key, 1 + config.layers)
      embedding_key, layer_keys = keys[0], keys[1:]

    x = jnp.take(self.embedding.astype(config.dtype), tokens, axis=0) * config.model**0.5
    if self.encoding.embed is not None:
      arrays = pe_jax.assemble(self.encoding, nnx.as_pure(self.encoding_params), config.dims)
      x = self.encoding.embed(arrays, x, positions)
    x = dropout(x, config.dropout, embedding_key)

    attend = self.layer_encodings.attention(
        mask=pe_jax.Mask(causal=True, q_segments=segments, k_segments=segments),
        positions=positions,
        segments=segments,
        length=length,
        kernel=kernel,
    )

    def run(x, layer):
      i, block, key = layer
      return block(x, functools.partial(attend, i), key), None

    run = jax.checkpoint(run, prevent_cse=False) if config.remat else run
    x, _ = jax.lax.scan(run, x, (jnp.arange(config.layers), self.blocks, layer_keys))
    x = x if self.norm is None else self.norm(x)

    # Times D ** -0.5: a tied row is its token's own hidden state, which it would predict otherwise.
    out = (self.embedding if self.out is None else self.out).astype(x.dtype)
    logits = jnp.einsum('...td,vd->...tv', x, out, preferred_element_type=jnp.float32)
    return logits * config.model**-0.5

  def _positions(self, tokens: Array, segments: Array | None) -> Array:
    if segments is not None:
      return pe_jax.positions.from_segments(segments)
    encodings = (self.encoding, *(layer.encoding for layer in self.layer_encodings.layers))
    for encoding in encodings:
      if encoding.max_length is not None and tokens.shape[-1] > encoding.max_length:
        raise ValueError(
            f'{encoding} has {encoding.max_length} positions, but there are {tokens.shape[-1]} tokens: '
            'give fewer, or give their positions.'
        )
    return jnp.arange(tokens.shape[-1])


def _plan(config: Config, encoding) -> tuple[pe_jax.Encoding, tuple[Layer, ...]]:
  """Finds what acts on the embedding, and the encoding and window of every layer."""
  encodings = encoding if isinstance(encoding, tuple) else (encoding,)
  windows = config.window if isinstance(config.window, tuple) else (config.window,)
  for name, pattern in {'encodings': encodings, 'windows': windows}.items():
    if not 1 <= len(pattern) <= config.layers:
      raise ValueError(
          f'{len(pattern)} {name} repeat over layers={config.layers}: give 1 to {config.layers}.'
      )
  sites = [pe_jax.sites(encoding) for encoding in encodings]
  on_embedding = tuple(dict.fromkeys(first for first, _ in sites if first.embed))
  if len(on_embedding) > 1:
    raise ValueError(f'{on_embedding} act on the one embedding of the model: give one of them.')
  layers = tuple(
      Layer(sites[i % len(sites)][1], windows[i % len(windows)]) for i in range(config.layers)
  )
  return (*on_embedding, pe_jax.none())[0], layers


def _check_tokens(tokens: Array, segments: Array | None):
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise ValueError(f'tokens have dtype {tokens.dtype}: they must be integers.')
  if segments is not None and segments.shape != tokens.shape:
    raise ValueError(f'segments have shape {segments.shape}, tokens {tokens.shape}: make them equal.')
