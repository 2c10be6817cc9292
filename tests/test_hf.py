# SPDX-License-Identifier: Apache-2.0
"""Hugging Face configs: what transformers computes from them, spellings, round trips, refusals."""

import copy
import json
import pathlib
import re

import numpy as np
import pytest

import pe_jax
from pe_jax import hf

SIZES = {'hidden_size': 64, 'num_attention_heads': 4}
VECTORS = json.loads(pathlib.Path(__file__).with_name('vectors').joinpath('rope.json').read_text())


def rope_type(case):
  config = case['config']
  table = config.get('rope_parameters') or config['rope_scaling']
  return table.get(case['layer_type'], table)['rope_type']


def compute(encoding, config, length):
  """Returns frequencies and factor of a record, in float64 and as its float32 constants."""
  dims = pe_jax.Dims(model=config['hidden_size'], heads=config['num_attention_heads'])
  options = dict(encoding.constants.keywords)
  width = dims.head_dim if options['width'] is None else int(options['width'])
  rule = options['rule']
  return rule(width, options['base'], length), rule.at(encoding.constants(dims), length)


# --- transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', sorted({rope_type(case) for case in VECTORS}))
def test_every_type_of_transformers(kind):
  cases = [case for case in VECTORS if rope_type(case) == kind]
  assert len(cases) >= 6
  for case in cases:
    encoding = hf.rope_from_config(case['config'])[case['layer_type'] or 'full_attention']
    wide, narrow = compute(encoding, case['config'], case['length'])
    # Our float32 against the truth, as transformers' own float32 errs by up to 1e-6.
    for found, name, rtol in (
        (wide, 'float64', 1e-12), (wide, 'float32', 1e-6), (narrow, 'float64', 1e-6)
    ):
      want = case[name]
      assert len(found[0]) == len(want['inv_freq'])
      np.testing.assert_allclose(found[0], want['inv_freq'], rtol=rtol, err_msg=str(case['config']))
      np.testing.assert_allclose(found[1], want['attention_factor'], rtol=rtol)


def test_configs_come_back_and_are_never_changed():
  for config in [case['config'] for case in VECTORS] + [GEMMA, SMOLLM]:
    before = copy.deepcopy(config)
    encodings = hf.rope_from_config(config)
    written = hf.to_config(encodings, config)
    assert config == before
    assert hf.rope_from_config(written) == encodings
    assert hf.rope_from_config(json.loads(json.dumps(written))) == encodings
    assert not written.keys() & {'rope_theta', 'rope_scaling', 'rope_local_base_freq'}
    assert hf.to_config(hf.rope_from_config(written), written) == written


# --- Spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'table',
    [
        {'type': 'linear', 'factor': 4},
        {'rope_type': 'linear', 'factor': 4.0},
        {'rope_type': 'linear', 'type': 'linear', 'factor': 4},
    ],
)
@pytest.mark.parametrize('key', ['rope_scaling', 'rope_parameters'])
def test_25_spellings_of_one_table(table, key):
  (encoding,) = hf.rope_from_config({**SIZES, key: table}).values()
  assert encoding == pe_jax.rope(scaling=pe_jax.scaling.linear(factor=4))
  constants = encoding.constants(pe_jax.Dims(model=128, heads=1))
  assert constants['inv_freq'][0] == 0.25


@pytest.mark.parametrize(
    'table', [None, {}, {'rope_type': 'default'}, {'rope_type': 'default', 'rope_theta': 1e4}]
)
def test_25_no_scaling(table):
  for config in (SIZES, {**SIZES, 'rope_scaling': table}, {**SIZES, 'rope_parameters': table}):
    assert hf.rope_from_config(config) == {'full_attention': pe_jax.rope()}


def test_25_su_is_longrope():
  table = {'short_factor': [1.0] * 8, 'long_factor': [2.0] * 8}
  beside = {'max_position_embeddings': 64, 'original_max_position_embeddings': 16}
  su, long = (
      hf.rope_from_config({**SIZES, **beside, 'rope_scaling': {'type': name, **table}})
      for name in ('su', 'longrope')
  )
  lists = {name: tuple(value) for name, value in table.items()}
  rule = pe_jax.scaling.longrope(**lists, factor=4, original_length=16)
  assert su == long == {'full_attention': pe_jax.rope(scaling=rule)}


@pytest.mark.parametrize('base', [10_000_000, 1e7])
def test_61_a_base_may_be_a_whole_number(base):
  config = {**SIZES, 'rope_theta': base}
  assert hf.rope_from_config(config) == {'full_attention': pe_jax.rope(base=1e7)}


@pytest.mark.parametrize('factor, width', [(1.0, None), (0.5, 8), (0.25, 4)])
def test_38_a_part_of_the_head_turns(factor, width):
  config = {**SIZES, 'partial_rotary_factor': factor}
  assert hf.rope_from_config(config) == {'full_attention': pe_jax.rope(width=width)}
  neox = {**SIZES, 'model_type': 'gpt_neox', 'rotary_pct': factor, 'rotary_emb_base': 2e4}
  assert hf.rope_from_config(neox) == {'full_attention': pe_jax.rope(base=2e4, width=width)}
  (phi,) = hf.rope_from_config({**SIZES, 'model_type': 'phi'}).values()
  assert phi == pe_jax.rope(width=8)


def test_the_model_type_decides_the_layout():
  for model_type, layout in {'llama': 'half', 'glm4': 'interleaved', 'qwen3': 'half'}.items():
    config = {**SIZES, 'model_type': model_type, 'partial_rotary_factor': 1.0}
    assert hf.rope_from_config(config)['full_attention'] == pe_jax.rope(layout=layout)
  found = hf.rope_from_config({**SIZES, 'model_type': 'of_tomorrow'}, layout='interleaved')
  assert found == {'full_attention': pe_jax.rope(layout='interleaved')}


# --- Layers --------------------------------------------------------------------------------------

GEMMA = {
    'model_type': 'gemma3_text', 'head_dim': 256, 'num_hidden_layers': 26, 'rope_theta': 1e6,
    'rope_local_base_freq': 1e4, 'rope_scaling': {'rope_type': 'linear', 'factor': 8},
    'sliding_window_pattern': 6, 'sliding_window': 512,
}
SMOLLM = {**SIZES, 'model_type': 'smollm3', 'num_hidden_layers': 8, 'rope_theta': 5e6}


def test_29_two_bases_in_one_model():
  encodings, kinds = hf.rope_from_config(GEMMA), hf.layer_types(GEMMA)
  assert [i for i, kind in enumerate(kinds) if kind == 'full_attention'] == [5, 11, 17, 23]
  dims = pe_jax.Dims(model=256, heads=1)
  local, whole = (
      encodings[f'{kind}_attention'].constants(dims)['inv_freq'] for kind in ('sliding', 'full')
  )
  assert float(whole[1]) == pytest.approx(0.112211, abs=1e-6)
  assert float(local[1]) == pytest.approx(0.930572, abs=1e-6)
  assert np.cos(100 * float(local[0])) == pytest.approx(0.862319, abs=1e-6)
  assert np.cos(100 * float(whole[0])) == pytest.approx(0.997798, abs=1e-6)
  # The released file leaves out what is the model's default.
  kept = ('model_type', 'head_dim', 'num_hidden_layers', 'rope_scaling')
  short = {key: GEMMA[key] for key in kept}
  assert hf.rope_from_config(short) == encodings and hf.layer_types(short) == kinds


def test_the_newer_spelling_of_two_bases():
  tables = {
      'full_attention': {'rope_type': 'linear', 'factor': 8, 'rope_theta': 1e6},
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 1e4},
  }
  config = {'head_dim': 256, 'rope_parameters': tables}
  assert hf.rope_from_config(config) == hf.rope_from_config(GEMMA)
  bert = {'model_type': 'modernbert', **SIZES, 'global_rope_theta': 1.6e5, 'local_rope_theta': 1e4}
  bert |= {'num_hidden_layers': 4, 'global_attn_every_n_layers': 3}
  assert hf.layer_types(bert) == ('full_attention', *['sliding_attention'] * 2, 'full_attention')
  assert hf.rope_from_config(bert) == {
      'full_attention': pe_jax.rope(base=1.6e5), 'sliding_attention': pe_jax.rope(base=1e4),
  }


def test_layers_without_positions():
  rope = pe_jax.rope(base=5e6)
  assert hf.rope_from_config(SMOLLM) == {'full_attention': rope, 'no_rope': pe_jax.none()}
  assert [i for i, kind in enumerate(hf.layer_types(SMOLLM)) if kind == 'no_rope'] == [3, 7]
  listed = {**SMOLLM, 'no_rope_layers': [1, 0, 1, 1, 1, 1, 1, 0]}
  assert [i for i, kind in enumerate(hf.layer_types(listed)) if kind == 'no_rope'] == [1, 7]
  cohere = {**SIZES, 'model_type': 'cohere2', 'num_hidden_layers': 4, 'sliding_window': 9}
  assert hf.layer_types(cohere) == (*['sliding_attention'] * 3, 'no_rope')
  assert hf.rope_from_config(cohere) == {
      'sliding_attention': pe_jax.rope(layout='interleaved'), 'no_rope': pe_jax.none(),
  }
  nothing = {**SIZES, 'rope_parameters': {'a': None, 'b': {'rope_type': 'default'}}}
  assert hf.rope_from_config(nothing) == {'a': pe_jax.none(), 'b': pe_jax.rope()}


def test_files_and_directories(tmp_path):
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(GEMMA))
  want = hf.rope_from_config(GEMMA)
  assert hf.rope_from_config(path) == hf.rope_from_config(str(tmp_path)) == want
  path.write_text('{"rope_theta": ')
  with pytest.raises(ValueError, match='config.json is not valid JSON'):
    hf.rope_from_config(path)
  path.write_text('[]')
  with pytest.raises(ValueError, match='holds list, not a JSON object'):
    hf.rope_from_config(path)
  with pytest.raises(ValueError, match='absent.json cannot be read'):
    hf.rope_from_config(tmp_path / 'absent.json')


# --- Refused by name -----------------------------------------------------------------------------


def scaled(**table):
  return {'rope_scaling': table}


@pytest.mark.parametrize(
    'config, says',
    [
        (scaled(type='foo'), "rope_scaling['rope_type']='foo' is not known"),
        (scaled(type='linear', rope_type='yarn', factor=2), 'rope_type and type contradict'),
        (scaled(type='linear', factor=2, beta_fast=3), "not known here, ['beta_fast']"),
        (scaled(type='default', mrope_section=[2, 1, 1]), "not known here, ['mrope_section']"),
        (scaled(type='linear'), "missing a required argument: 'factor'"),
        (scaled(type='linear', factor=0.5), 'factor=0.5 must be at least 1'),
        (scaled(type='linear', factor='4'), "factor='4' is not what"),
        (scaled(type='linear', factor=True), 'factor=True is not what'),
        (scaled(type='yarn', factor=4), 'original_max_position_embeddings=None'),
        (scaled(type='longrope', short_factor=[1], long_factor=['x'],
                original_max_position_embeddings=9), "long_factor=['x']"),
        ({'rope_scaling': 'linear'}, "rope_scaling='linear' is not a table"),
        ({'rope_theta': '1e7'}, "rope_theta='1e7' is not what"),
        ({'rope_theta': 0}, 'base=0.0 must be'),
        ({'rope_tetha': 1e4}, 'rope_tetha=10000.0 is not known'),
        ({'use_rotary': True}, 'use_rotary=True is not known'),
        ({'qk_rope_head_dim': 64}, 'qk_rope_head_dim=64 is not known'),
        ({'alibi': True}, 'alibi=True acts on positions'),
        ({'attn_temperature_tuning': True}, 'attn_temperature_tuning=True acts on positions'),
        ({'position_embedding_type': 'absolute'}, "position_embedding_type='absolute' is not RoPE"),
        ({'model_type': 'of_tomorrow'}, "model_type='of_tomorrow' is not known"),
        ({'model_type': 'gpt_oss'}, 'rope_parameters is missing: gpt_oss scales RoPE'),
        ({'head_dim': 96, 'partial_rotary_factor': 0.3333}, 'width=31 must be even'),
        ({'rope_theta': 1e6, 'rope_parameters': {'rope_theta': 1e5}}, 'keep one'),
        ({'rope_theta': 1e6, 'rotary_emb_base': 1e5}, 'contradict each other'),
        ({'rope_scaling': {'type': 'default'}, 'rope_parameters': {'rope_type': 'linear'}},
         'rope_parameters and rope_scaling contradict'),
        ({'layer_types': ['a'], 'rope_parameters': {'b': {}}}, "layers of 'a'"),
        ({'rope_parameters': {'b': {}, 'factor': 2}}, "['factor'] beside them"),
        ({'layer_types': ['a'], 'num_hidden_layers': 2}, 'layer_types lists 1 layers'),
        ({'num_hidden_layers': 2, 'no_rope_layers': [1]}, 'no_rope_layers lists 1 layers'),
        ({'num_hidden_layers': 2, 'sliding_window_pattern': 'LG'}, 'give layer_types'),
        ({'num_attention_heads': 3}, 'hidden_size=64 is no multiple'),
        ({'num_attention_heads': 0}, 'num_attention_heads=0 must be a positive integer'),
        ({'hidden_size': 'x'}, "hidden_size='x' must be a positive integer"),
        ({'num_attention_heads': None}, 'num_attention_heads=None: give'),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(config, says):
  with pytest.raises(ValueError, match=re.escape(says)):
    hf.rope_from_config({**SIZES, **config})


def test_a_model_of_several_parts_asks_for_its_text():
  with pytest.raises(ValueError, match='text_config'):
    hf.rope_from_config({'text_config': SIZES})


@pytest.mark.parametrize(
    'encoding',
    [
        pe_jax.alibi(),
        pe_jax.rope(scaling=pe_jax.scaling.ntk(factor=2)),
        pe_jax.rope(layout='interleaved'),
        pe_jax.rope(width=8, part='trailing'),
        pe_jax.rope(scaling=pe_jax.scaling.dynamic_ntk(factor=2, original_length=99)),
    ],
    ids=lambda encoding: encoding.name.split(',')[0],
)
def test_what_a_config_cannot_hold_is_not_written(encoding):
  with pytest.raises(ValueError, match='has no name in a config|cannot be written'):
    hf.to_config({'full_attention': encoding}, {**SIZES, 'max_position_embeddings': 64})
