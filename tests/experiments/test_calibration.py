# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints are out of calibration, and rules that are calibrated or typed."""

import math

import numpy as np
import pytest

from experiments import errors
from experiments.rope import calibration
from experiments.rope import findings
import pe_jax

BARE = {'head_dim': 64, 'max_position_embeddings': 4096, 'model_type': 'llama'}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4096}


def layer_of(config, **lengths):
  return calibration.layers(config, **{'length': None, 'trained': None} | lengths)[0]


def told(config, level='warning', **lengths):
  """The settings that a config is warned of."""
  found = findings.find(config, layer_of(config, **lengths))
  return {f.setting: f.text for f in found if f.level == level}


# --- Findings ------------------------------------------------------------------------------------


def test_a_calibrated_checkpoint_has_no_warning():
  config = BARE | {'max_position_embeddings': 16384, 'rope_scaling': YARN}
  assert not told(config)
  assert not told(BARE)


@pytest.mark.parametrize('name', calibration.RULES)
def test_other_rules_are_calibrated_for_both_lengths(name):
  layer = layer_of(BARE | {'max_position_embeddings': 32768}, trained=4096)
  rule = calibration.calibrated(name, layer)
  options = calibration.call_of(rule)[1]
  assert options.get('factor', 8) == 8
  assert options.get('original_length', 4096) == 4096


def test_a_factor_that_does_not_reach():
  config = BARE | {'max_position_embeddings': 16384, 'rope_scaling': YARN}
  assert '4 x 4,096 = 16,384 tokens do not reach 65,536' in told(config, length=65536)['factor']
  assert 'Take 16,' in told(config, length=65536)['factor']
  assert 'factor' not in told(config, length=16384)


def test_a_factor_beyond_need_is_noted():
  config = BARE | {'rope_scaling': YARN | {'factor': 16.0}}
  assert '16 times the 4,096' in told(config, 'note')['factor']


def test_a_wrong_original_length():
  config = BARE | {'max_position_embeddings': 16384, 'rope_scaling': YARN}
  wrong = YARN | {'original_max_position_embeddings': 8192}
  assert 'original_length' in told(config | {'rope_scaling': wrong}, trained=4096)
  assert 'original_length' not in told(config, trained=4096)


def test_an_original_length_that_was_not_given():
  scaling = {'rope_type': 'yarn', 'factor': 4.0}
  assert 'original_length' in told(BARE | {'rope_scaling': scaling})
  given = BARE | {'rope_scaling': YARN}  # as Qwen 2.5 writes it
  assert 'original_length' not in told(given)
  assert '16,384' in told(given, 'note')['max_position_embeddings']


def test_a_base_changed_without_scaling():
  config = BARE | {'rope_theta': 1e6}
  factor = (1e6 / 1e4) ** (62 / 64)
  assert f'ntk(factor={factor:.3g})' in told(config, length=32768)['rope_theta']
  assert 'rope_theta' in told(config, 'note')
  assert 'rope_theta' not in told(BARE | {'rope_theta': 1e4}, length=32768)
  # That factor is right: the rule gives the last frequency of the raised base.
  rule = pe_jax.scaling.ntk(factor=factor)
  np.testing.assert_allclose(rule(64, 1e4)[0], 1e6 ** (-np.arange(0, 64, 2) / 64), rtol=1e-12)


def test_a_ramp_that_is_not_rounded():
  config = BARE | {'max_position_embeddings': 16384}
  loose = YARN | {'truncate': False}
  assert 'truncate' in told(config | {'rope_scaling': loose})
  assert 'truncate' in told(config | {'rope_scaling': loose, 'model_type': 'gpt_oss'}, 'note')
  nested = {'rope_parameters': {'full_attention': loose | {'rope_theta': 1e4}}}
  assert 'transformers' in told(config | nested)['truncate']


def test_an_attention_factor_that_was_overridden():
  config = BARE | {'max_position_embeddings': 16384}
  text = told(config | {'rope_scaling': YARN | {'attention_factor': 1.0}})['attention_factor']
  assert '1.0000 is given in place of 1.1386' in text
  text = told(config | {'rope_scaling': YARN | {'mscale': 1.0, 'mscale_all_dim': 1.0}}, 'note')
  assert 'mscale' in text
  same = YARN | {'attention_factor': 0.1 * math.log(4) + 1}
  assert 'attention_factor' not in told(config | {'rope_scaling': same})


def test_betas_that_no_channel_reaches():
  short = YARN | {'original_max_position_embeddings': 64}
  config = BARE | {'max_position_embeddings': 256, 'rope_scaling': short}
  assert 'turns only 10.2 times' in told(config)['beta_fast']
  assert 'beta_slow' in told(BARE | {'rope_scaling': YARN | {'beta_slow': 2.0}}, 'note')


def test_dynamic_rules_and_far_positions_are_noted():
  dynamic = BARE | {'rope_scaling': {'rope_type': 'dynamic', 'factor': 2.0}}
  assert 'cached before they are rotated' in told(dynamic, 'note', length=32768)['rope_type']
  assert not told(dynamic, length=32768)
  assert 'precision' in told(BARE, 'note', length=2**20)


def test_a_sliding_layer_needs_no_more_than_its_window():
  config = BARE | {
      'model_type': 'gemma3_text', 'num_hidden_layers': 6, 'sliding_window': 512,
      'rope_theta': 1e6, 'rope_local_base_freq': 1e4, 'max_position_embeddings': 32768,
  }
  sliding, full = sorted(
      calibration.layers(config, length=10**6, trained=None), key=lambda layer: -layer.count
  )
  assert (sliding.kind, sliding.count, sliding.trained, sliding.length) == (
      'sliding_attention', 5, 512, 512,
  )
  # No distance is new to it, but its phases are those of the whole text.
  assert [f.setting for f in findings.find(config, sliding)] == ['precision']
  assert [f for f in findings.find(config, full) if f.level == 'warning']


def test_layers_that_share_a_rule_with_longer_ones_are_not_told_of_its_factor():
  config = BARE | {
      'model_type': 'gpt_oss', 'sliding_window': 128, 'max_position_embeddings': 16384,
      'layer_types': ['sliding_attention', 'full_attention'], 'rope_scaling': YARN,
  }
  for layer in calibration.layers(config, length=None, trained=None):
    assert not findings.find(config, layer)


# --- Rules as typed ------------------------------------------------------------------------------


def test_rules_are_typed_as_encodings_are():
  layer = layer_of(BARE, length=32768)
  found = calibration.rotations(
      ['yarn', 'linear(factor=2)', 'rope(base=5e6, scaling=scaling.ntk(factor=2))'], layer
  )
  assert [repr(rotation.rule) for rotation in found.values()] == [
      'yarn(factor=8.0, original_length=4096.0, beta_fast=32.0, beta_slow=1.0)',
      'linear(factor=2.0)',
      'ntk(factor=2.0)',
  ]
  assert [rotation.base for rotation in found.values()] == [1e4, 1e4, 5e6]


@pytest.mark.parametrize(
    ('rule', 'words'),
    [
        ('yarnn', 'yarn'),
        ('longrope', 'written out'),
        ('yarn(factr=4)', 'factor'),
        ('yarn(factor=0.5, original_length=64)', 'at least 1'),
        ('rope(width=32)', 'give rope(width=64'),
        ('yarn(', 'cannot be read'),
    ],
)
def test_rules_that_cannot_be_made(rule, words):
  with pytest.raises(errors.UserError, match='(?s).*' + words.replace('(', r'\(')):
    calibration.rotations([rule], layer_of(BARE))
