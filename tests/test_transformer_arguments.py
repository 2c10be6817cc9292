# SPDX-License-Identifier: Apache-2.0
"""What is passed to a Transformer, and what it refuses."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.decoders import make
from tests.decoders import random_tokens
from tests.decoders import run
from tests.decoders import SMALL


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
