# SPDX-License-Identifier: Apache-2.0
"""What the programs of a Transformer and its tree must be, for every encoding."""

import dataclasses
import functools
import inspect
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


def catalogue():
  """One record of every exported factory; a number that it cannot do without is 8."""
  exported = [getattr(pe_jax, name) for name in pe_jax.__all__]
  signatures = {
      make: inspect.signature(make).parameters.values()
      for make in exported
      if getattr(make, '__annotations__', {}).get('return') in ('Encoding', pe_jax.Encoding)
      and hasattr(make, '__wrapped__')  # not what makes encodings of encodings
  }
  return [
      make(**{p.name: 8 for p in parameters if p.default is p.empty})
      for make, parameters in signatures.items()
  ]


every_encoding = pytest.mark.parametrize('encoding', catalogue(), ids=repr)


# --- Every encoding ------------------------------------------------------------------------------


@every_encoding
def test_no_token_sees_a_later_one(encoding):
  model = make(encoding, dataclasses.replace(SMALL, layers=2, tie=False))
  tokens = jnp.array([3, 1, 4, 15, 9, 2])  # all different, so that a row of the table is a token
  weights = jax.random.normal(jax.random.key(5), (6, SMALL.vocab))
  jacobian = quick_jit(jax.jacrev(lambda model: jnp.sum(model(tokens) * weights, axis=-1)))(model)
  influence = jnp.abs(jacobian.embedding[:, tokens]).sum(axis=-1)  # of token s on the logits of t
  assert np.all(np.isfinite(influence))
  np.testing.assert_array_equal(np.triu(influence, 1), 0)
  assert np.all(influence[np.tril_indices(6)] > 1e-6)


@every_encoding
def test_packed_and_padded_documents_are_as_if_alone(encoding):
  model = make(encoding)
  first, second, junk = random_tokens(3), random_tokens(5, seed=2), random_tokens(3, seed=3)
  rows = (
      ([first, second], [1] * 3 + [2] * 5),
      ([junk, second], [0] * 3 + [1] * 5),
      ([second, junk], [7] * 5 + [0] * 3),
      ([first, junk, junk[:2]], [2] * 3 + [0] * 5),
  )
  tokens = jnp.stack([jnp.concatenate(parts) for parts, _ in rows])
  segments = jnp.array([ids for _, ids in rows])
  packed, left, right, start = run(model, tokens, segments=segments, length=8)
  alone = run(model, second[None], length=8)[0]
  for ours, theirs in (
      (packed[3:], alone),
      (left[3:], alone),
      (right[:5], alone),
      (packed[:3], start[:3]),
  ):
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5)


@every_encoding
def test_leaves_are_what_is_trained_and_nothing_else(encoding):
  shapes, without = (jax.eval_shape(initial, e, SMALL) for e in (encoding, pe_jax.none()))
  extra = number_of_parameters(shapes) - number_of_parameters(without)
  assert extra == pe_jax.parameter_count(encoding, SMALL.dims)
  for leaf in jax.tree.leaves(shapes):  # a weak type would trace a training step twice
    assert leaf.dtype == jnp.float32 and not leaf.weak_type


@every_encoding
def test_program_holds_no_array_of_the_length(encoding):
  config = dataclasses.replace(SMALL, layers=2, window=(64, None))
  if encoding.name.startswith('learned'):
    encoding = pe_jax.learned(length=1024)
  model = jax.eval_shape(lambda: make(encoding, config))
  tokens = jax.ShapeDtypeStruct((1, 1024), jnp.int32)
  text = run.lower(model, tokens).as_text()
  assert '1024x1024' in text  # the logits of the dense kernel: the text does show what is made
  assert len(text) < 200_000  # an array of 1024 x 1024 alone takes 2 million characters


def number_of_parameters(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# --- Layers and their encodings ------------------------------------------------------------------


def encoding_shapes(encoding, **options):
  model = jax.eval_shape(lambda: make(encoding, dataclasses.replace(SMALL, layers=5, **options)))
  return jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(model.layer_encodings)))['params']


def test_one_table_or_one_for_each_layer():
  assert encoding_shapes(T5) == {0: {'table': (4, 6)}}
  assert encoding_shapes(T5, sharing='untied') == {0: {'table': (5, 4, 6)}}
  pattern = (T5, pe_jax.none(), pe_jax.alibi_learned())
  assert encoding_shapes(pattern) == {0: {'table': (4, 6)}, 2: {'slopes': (4,)}}
  untied = encoding_shapes(pattern, sharing='untied')
  assert untied == {0: {'table': (2, 4, 6)}, 2: {'slopes': (1, 4)}}


def test_the_embedding_has_its_arrays_once():
  encoding = pe_jax.compose(pe_jax.learned(length=8), T5)
  model = make((encoding, pe_jax.none()), dataclasses.replace(SMALL, sharing='untied'))
  assert model.encoding_params['table'].shape == (8, 16)
  assert encoding_shapes(encoding, sharing='untied') == {0: {'table': (5, 4, 6)}}


def test_shared_arrays_are_untied_ones_that_are_equal():
  shared = make(T5)
  untied = make(T5, dataclasses.replace(SMALL, sharing='untied'))
  graph, state = nnx.split(untied)
  values = nnx.to_pure_dict(nnx.state(shared))
  values['layer_encodings']['params'][0]['table'] = jnp.stack(
      [shared.layer_encodings.params[0]['table'][...]] * SMALL.layers
  )
  nnx.replace_by_pure_dict(state, values)
  untied, tokens = nnx.merge(graph, state), random_tokens(2, 6)
  np.testing.assert_allclose(run(shared, tokens), run(untied, tokens), atol=1e-6)
  gradient = quick_jit(jax.grad(lambda model: model(tokens)[..., 0].sum()))
  one, each = (gradient(model).layer_encodings.params[0]['table'] for model in (shared, untied))
  np.testing.assert_allclose(one[...], each[...].sum(axis=0), atol=1e-4)
  assert np.all(np.abs(each[...]).max(axis=(1, 2)) > 0.01)


def test_parameters_outside_the_encoding_are_the_same_for_any():
  rest = []
  for encoding in (pe_jax.learned(length=8), (T5, pe_jax.fox())):
    state = nnx.to_pure_dict(nnx.state(initial(encoding)))
    rest.append({k: v for k, v in state.items() if k not in ('encoding_params', 'layer_encodings')})
  jax.tree.map(np.testing.assert_array_equal, *rest)


# --- Programs ------------------------------------------------------------------------------------


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


# --- Arguments -----------------------------------------------------------------------------------


def test_positions_are_the_callers():
  model, tokens = make(pe_jax.sinusoidal()), random_tokens(2, 6)
  np.testing.assert_allclose(run(model, tokens), run(model, tokens, positions=jnp.arange(6)))
  rows = jnp.stack([jnp.arange(6), 3 + jnp.arange(6)])
  moved = run(model, tokens, positions=rows)
  np.testing.assert_allclose(moved[0], run(model, tokens)[0], atol=1e-6)
  assert np.abs(moved[1] - run(model, tokens)[1]).max() > 0.01


def test_length_and_kernel_reach_attention():
  encoding = pe_jax.rope(scaling=pe_jax.scaling.dynamic_ntk(factor=2, original_length=8))
  model, tokens = make(encoding), random_tokens(1, 6)
  logits = run(model, tokens)
  np.testing.assert_allclose(run(model, tokens, length=6), logits, atol=1e-6)
  assert np.abs(run(model, tokens, length=64) - logits).max() > 0.01
  other = run(model, tokens, kernel=pe_jax.kernels.xla)
  np.testing.assert_allclose(other, logits, atol=1e-5)
  with pytest.raises(ValueError, match='logits hook'):
    run(make(pe_jax.cope()), tokens, kernel=pe_jax.kernels.xla)


def test_one_row_without_a_batch():
  model, tokens = make(pe_jax.compose(pe_jax.rope(), pe_jax.fox())), random_tokens(6)
  np.testing.assert_allclose(run(model, tokens), run(model, tokens[None])[0], atol=1e-6)


def test_row_with_a_token_outside_the_vocabulary_is_nan():
  logits = run(make(pe_jax.rope()), jnp.array([[1, 2, 31, 3], [1, 2, 32, 3]]))
  assert np.all(np.isfinite(logits[0])) and np.all(np.isnan(logits[1]))


@pytest.mark.parametrize(
    'options, message',
    [
        ({'heads': 3, 'kv_heads': None}, 'model=16 does not divide into heads=3'),
        ({'kv_heads': 3}, 'not a multiple of kv_heads=3'),
        ({'layers': 0}, 'layers=0 must be a positive integer'),
        ({'vocab': 2.5}, 'vocab=2.5 must be a positive integer'),
        ({'hidden': -1}, 'hidden=-1'),
        ({'norm': 'batch'}, "norm='batch': choose one of"),
        ({'activation': 'tanh'}, "activation='tanh': choose one of"),
        ({'residual': 'none'}, "residual='none': choose one of"),
        ({'sharing': True}, 'sharing=True: choose one of'),
        ({'dtype': 'int8'}, "dtype='int8': choose one of"),
        ({'dropout': 1.0}, 'dropout=1.0 must be'),
    ],
)
def test_bad_config(options, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(SMALL, **options)


@pytest.mark.parametrize(
    'encoding, options, message',
    [
        ((pe_jax.rope(),) * 4, {}, '4 encodings repeat over layers=3'),
        ((), {}, '0 encodings'),
        (pe_jax.rope(), {'window': (1, 2, 3, 4)}, '4 windows repeat'),
        ((pe_jax.sinusoidal(), pe_jax.learned(length=8)), {}, 'one embedding'),
        (pe_jax.rope(width=6), {}, 'width=6 is more than head_dim=4'),
    ],
)
def test_bad_pattern(encoding, options, message):
  with pytest.raises(ValueError, match=message):
    make(encoding, dataclasses.replace(SMALL, **options))(random_tokens(1, 4))


@pytest.mark.parametrize(
    'tokens, options, message',
    [
        (jnp.ones((2, 4)), {}, 'float32: they must be integers'),
        (jnp.ones((2, 4), int), {'segments': jnp.ones(4, int)}, 'must have the shape of tokens'),
        (jnp.ones((2, 9), int), {}, '8 positions for 9 tokens'),
    ],
)
def test_bad_inputs(tokens, options, message):
  with pytest.raises(ValueError, match=message):
    run(make(pe_jax.learned(length=8)), tokens, **options)
