# SPDX-License-Identifier: Apache-2.0
"""What a Transformer and its tree must be, for every encoding."""

import dataclasses
import inspect
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.decoders import initial
from tests.decoders import make
from tests.decoders import quick_jit
from tests.decoders import random_tokens
from tests.decoders import run
from tests.decoders import SMALL
from tests.decoders import T5
from tests.factories import factories


def catalogue():
  """One record of every exported factory; a number that it cannot do without is 8."""
  signatures = {
      make: inspect.signature(make).parameters.values()
      for make in factories().values()
      if hasattr(make, '__wrapped__')  # not what makes encodings of encodings
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
  # Whoever sees whole rows has an array of all logits, so the text does show what is made.
  assert ('1024x1024' in text) == (encoding.logits is not None)
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
