# SPDX-License-Identifier: Apache-2.0
"""The programs of a Transformer, and the numbers that they make."""

import dataclasses
import functools
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pe_jax
from pe_jax import transformer
from pe_jax.transformer._parts import dropout
from tests.decoders import initial
from tests.decoders import make
from tests.decoders import quick_jit
from tests.decoders import random_tokens
from tests.decoders import run
from tests.decoders import SMALL
from tests.decoders import T5
from tests.decoders import to_float64


def loss(model, tokens, **options):
  logits = model(tokens[:, :-1], **options)
  return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@pytest.mark.parametrize('sharing', ['shared', 'untied'])
def test_program_does_not_grow_with_depth(sharing):
  encodings = (T5, pe_jax.rope(), pe_jax.fox())

  def operations(layers):
    config = dataclasses.replace(SMALL, layers=layers, sharing=sharing)
    model = jax.eval_shape(lambda: make(encodings, config))
    lowered = jax.jit(jax.grad(loss)).lower(model, jax.ShapeDtypeStruct((2, 9), jnp.int32))
    return lowered.as_text().count(' = ')

  assert operations(3) > 500
  assert operations(12) <= 1.1 * operations(3)


def test_five_training_steps_are_traced_once():
  optimizer, traces = optax.adamw(1e-2), []

  @quick_jit
  def step(model, state, tokens):
    traces.append(tokens.shape)
    value, gradient = jax.value_and_grad(loss)(model, tokens)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value

  model = initial(pe_jax.compose(pe_jax.rope(), T5))
  state, losses = optimizer.init(model), []
  for _ in range(5):
    model, state, value = step(model, state, random_tokens(2, 9))
    losses.append(value)
  again = make(pe_jax.compose(pe_jax.rope(base=10000), T5), dataclasses.replace(SMALL))
  step(again, optimizer.init(again), random_tokens(2, 9, seed=4))
  assert len(traces) == 1
  assert losses[-1] < losses[0] - 0.1
  step(model, state, random_tokens(2, 5))
  assert len(traces) == 2


def test_seeds_are_vmapped():
  build = functools.partial(initial, T5, SMALL)
  models, tokens = jax.vmap(build)(jnp.arange(2)), random_tokens(2, 6)
  logits = jax.vmap(run, in_axes=(0, None))(models, tokens)
  for seed in range(2):
    np.testing.assert_allclose(logits[seed], run(build(seed), tokens), atol=1e-5, rtol=1e-5)
  assert np.abs(logits[0] - logits[1]).max() > 0.01


def test_remat_saves_memory_and_changes_nothing():
  config = dataclasses.replace(SMALL, layers=6, dropout=0.2)
  tokens, key = random_tokens(2, 65), jax.random.key(0)
  values, gradients, sizes = [], [], []
  for remat in (False, True):
    model = make(T5, dataclasses.replace(config, remat=remat))
    step = quick_jit(jax.value_and_grad(loss)).lower(model, tokens, dropout_key=key).compile()
    value, gradient = step(model, tokens, dropout_key=key)
    values.append(value)
    gradients.append(to_float64(gradient))
    sizes.append(step.memory_analysis().temp_size_in_bytes)
  np.testing.assert_allclose(*values, rtol=1e-6)
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *gradients)
  assert sizes[1] < 0.6 * sizes[0]


# --- Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'options', [{}, {'model': 16}, {'tie': False}, {'residual': 'post'}], ids=str
)
def test_untrained_loss_is_the_logarithm_of_the_vocabulary(options):
  config = transformer.Config(**{'vocab': 64, 'layers': 2, 'model': 128, 'heads': 4, **options})
  value = quick_jit(loss)(initial(pe_jax.sinusoidal(), config), random_tokens(8, 33, vocab=64))
  assert abs(value - math.log(64)) < 0.3


def test_bfloat16_is_close_and_keeps_parameters_and_logits_in_float32():
  tokens, encoding = random_tokens(4, 33), pe_jax.compose(pe_jax.sinusoidal(), pe_jax.rope(), T5)
  model = initial(encoding)
  half = initial(encoding, dataclasses.replace(SMALL, dtype='bfloat16'))
  logits, rounded = run(model, tokens), run(half, tokens)
  assert rounded.dtype == jnp.float32
  gradient = jax.eval_shape(jax.grad(loss), half, tokens)
  assert {leaf.dtype for leaf in jax.tree.leaves((half, gradient))} == {jnp.dtype('float32')}
  error = jnp.abs(rounded - logits).max() / logits.std()
  assert 0.001 < error < 0.1
  products = [
      line for line in run.lower(half, tokens).as_text().splitlines() if 'dot_gen' in line
  ]
  assert products and all('bf16' in line for line in products)


def test_dropout_needs_a_key():
  model = make(pe_jax.rope(), dataclasses.replace(SMALL, dropout=0.3))
  tokens = random_tokens(1, 6)
  first, second = jax.random.split(jax.random.key(0))
  np.testing.assert_array_equal(run(model, tokens), run(make(pe_jax.rope()), tokens))
  np.testing.assert_array_equal(
      run(model, tokens, dropout_key=first), run(model, tokens, dropout_key=first)
  )
  for other in (run(model, tokens), run(model, tokens, dropout_key=second)):
    assert np.abs(run(model, tokens, dropout_key=first) - other).max() > 0.01


def test_dropout_keeps_the_mean():
  dropped = dropout(jnp.full((100, 100), 3.0), 0.25, jax.random.key(0))
  np.testing.assert_allclose(np.unique(dropped), [0, 4], rtol=1e-6)
  np.testing.assert_allclose(dropped.mean(), 3, rtol=0.02)


def test_both_sublayers_drop_on_their_own():
  """With outputs of 1 from each of them and no norm, the sum counts what was kept."""
  config = dataclasses.replace(SMALL, dropout=0.5)
  block = jax.tree.map(lambda leaf: leaf[0], make(pe_jax.none(), config).blocks)
  for name in ('attention', 'feed_forward'):
    object.__setattr__(block, name, lambda x, *args: jnp.ones_like(x))
  kept = block(jnp.zeros((1000, 16)), None, jax.random.key(0)) / 2
  fractions = np.bincount(np.asarray(kept, int).ravel(), minlength=3) / kept.size
  np.testing.assert_allclose(fractions, [0.25, 0.5, 0.25], atol=0.02)


def test_the_embedding_is_dropped_too():
  config = dataclasses.replace(SMALL, dropout=0.3)
  silent = jax.tree_util.tree_map_with_path(
      lambda path, leaf: 0 * leaf if '.blocks' in jax.tree_util.keystr(path) else leaf,
      make(pe_jax.none(), config),
  )
  tokens = random_tokens(1, 6)
  dropped = run(silent, tokens, dropout_key=jax.random.key(0))
  assert np.abs(dropped - run(silent, tokens)).max() > 0.01


def test_weight_decay_moves_weights_and_no_constant():
  encoding = pe_jax.compose(pe_jax.sinusoidal(), pe_jax.rope(), pe_jax.alibi(), T5)
  model = make(encoding)
  optimizer = optax.adamw(0.1, weight_decay=0.1)
  zero, state, decayed = jax.tree.map(jnp.zeros_like, model), optimizer.init(model), model
  for _ in range(10):
    updates, state = optimizer.update(zero, state, decayed)
    decayed = optax.apply_updates(decayed, updates)
  jax.tree.map(
      lambda after, before: np.testing.assert_allclose(after, 0.904382 * before, rtol=1e-5),
      to_float64(decayed),
      to_float64(model),
  )
  # What is left of the encoding's arrays is what its constants say, bit by bit.
  constants = encoding.constants(SMALL.dims)
  layers = pe_jax.sites(encoding)[1]
  arrays = pe_jax.assemble(layers, nnx.as_pure(decayed.layer_encodings.params[0]), SMALL.dims)
  np.testing.assert_array_equal(arrays['0']['inv_freq'], constants['1']['inv_freq'])
  np.testing.assert_array_equal(arrays['1']['slopes'], constants['2']['slopes'])
