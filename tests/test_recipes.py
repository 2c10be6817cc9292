# SPDX-License-Identifier: Apache-2.0
"""The recipes of the README run, and Flax's modules get what they ask of their attention."""

import functools
import inspect
import pathlib
import re

from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.hosts import attention_fn

README = pathlib.Path(__file__).parent.parent / 'README.md'
HOSTS = ('Raw JAX', 'Flax NNX', 'Flax Linen', 'Equinox', 'Haiku')


def recipes():
  """Returns the first code block of the section, and that of every host."""
  section = README.read_text().partition('\n## In your own model\n')[2].partition('\n## ')[0]
  start, *rest = re.split(r'^\*\*([\w ]+)\.\*\*', section, flags=re.MULTILINE)
  code = functools.partial(re.findall, r'^```python\n(.*?)^```', flags=re.MULTILINE | re.DOTALL)
  blocks = {host: code(text) for host, text in zip(rest[::2], rest[1::2], strict=True)}
  return code(start), blocks


@pytest.mark.parametrize('host', HOSTS)
def test_recipe_trains_the_table(host, capsys):
  (shared,), blocks = recipes()
  (block,) = blocks[host]
  assert len(block.splitlines()) < 35
  scope = {}
  exec(shared, scope)  # in one scope, as a reader would paste them
  exec(block, scope)
  gradient = float(capsys.readouterr().out)
  assert 1e-4 < gradient < np.inf


def test_every_recipe_is_run():
  assert tuple(recipes()[1]) == HOSTS


# --- attention_fn in Flax's modules --------------------------------------------------------------

POSITIONS = jnp.arange(6)
OURS = functools.partial(
    attention_fn, encoding=pe_jax.none(), params={}, q_pos=POSITIONS, k_pos=POSITIONS
)
X = jax.random.normal(jax.random.key(0), (2, 6, 16))
EYE = jnp.eye(6, dtype=bool)[None, None]
MASK = jax.random.bernoulli(jax.random.key(1), 0.6, (2, 4, 6, 6)) | EYE


def nnx_layer(fn, **options):
  return nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0), attention_fn=fn, **options)


def linen_layer(fn, **options):
  module = nn.MultiHeadDotProductAttention(num_heads=4, attention_fn=fn, **options)
  return lambda x, **call: module.apply(module.init(jax.random.key(0), x), x, **call)


@pytest.mark.parametrize(
    'layer, call',
    [
        (nnx_layer, {}),
        (nnx_layer, {'is_causal': True}),
        (nnx_layer, {'mask': MASK}),
        (nnx_layer, {'mask': MASK | ~MASK, 'is_causal': True}),
        (linen_layer, {}),
        (linen_layer, {'mask': MASK}),
        (linen_layer, {'mask': nn.make_causal_mask(X[..., 0])}),  # float32, as Linen makes it
    ],
)
def test_without_an_encoding_it_is_the_hosts_own(layer, call):
  theirs = nnx.dot_product_attention if layer is nnx_layer else nn.dot_product_attention
  np.testing.assert_allclose(layer(OURS)(X, **call), layer(theirs)(X, **call), atol=1e-5)


@pytest.mark.parametrize('layer', [nnx_layer, linen_layer])
def test_dtype_and_precision_are_honoured(layer):
  assert layer(OURS, dtype=jnp.bfloat16)(X).dtype == jnp.bfloat16
  for precision, name in (('bfloat16', 'DEFAULT'), (jax.lax.Precision.HIGH, 'HIGH')):
    program = str(jax.make_jaxpr(layer(OURS, precision=precision))(X))
    assert set(re.findall(r'precision=\(?(?:Precision\.)?(\w+)', program)) == {name}


@pytest.mark.parametrize('layer', [nnx_layer, linen_layer])
def test_everything_that_the_host_passes_has_a_name(layer):
  """Linen drops what is not in the signature, so the mask too would be lost in silence."""
  theirs = nnx.dot_product_attention if layer is nnx_layer else nn.dot_product_attention
  passed = {}

  def spy(query, key, value, **kwargs):
    passed.update(kwargs)
    return value

  spy.__signature__ = inspect.signature(theirs)
  layer(spy)(X, mask=MASK)
  assert 'mask' in passed
  assert passed.keys() <= inspect.signature(OURS).parameters.keys()


@pytest.mark.parametrize(
    'given',
    [
        {'bias': jnp.zeros((4, 6, 6))},
        {'dropout_rate': 0.1, 'deterministic': False},
        {'module': object()},
        {'qk_attn_weights_einsum': jnp.einsum},
        {'attn_weights_value_einsum': jnp.einsum},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_would_be_ignored_is_refused(given):
  q = k = v = jnp.ones((2, 6, 4, 8))
  with pytest.raises(ValueError, match=f'cannot honour {next(iter(given))}'):
    OURS(q, k, v, **given)
  OURS(q, k, v, dropout_rate=0.1, deterministic=True)


def test_causal_with_fewer_queries_than_keys_is_refused():
  """NNX aligns the mask at the first key, so that a decoding step would see that key alone."""
  q, k = jnp.ones((2, 1, 4, 8)), jnp.ones((2, 6, 4, 8))
  one = functools.partial(OURS, q_pos=jnp.array([5]))
  with pytest.raises(ValueError, match='fewer queries than keys'):
    one(q, k, k, is_causal=True)
  one(q, k, k)
