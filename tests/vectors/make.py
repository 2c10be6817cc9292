# SPDX-License-Identifier: Apache-2.0
"""Writes rope.json: what transformers computes for randomly drawn RoPE configurations.

  python tests/vectors/make.py  # takes the `peers` extra

transformers computes in float32. The float64 columns come from the same functions, which are handed
a torch whose float32 is float64.
"""

import copy
import functools
import json
import pathlib
import types
from unittest import mock

import numpy as np

DRAWS = 6
PATH = pathlib.Path(__file__).with_name('rope.json')


def main():
  rng = np.random.default_rng(2026)
  cases = [case for kind in KINDS for _ in range(DRAWS) for case in _cases(kind, rng)]
  lines = ',\n'.join(json.dumps(case) for case in cases)
  PATH.write_text(f'[\n{lines}\n]\n')
  print(f'{len(cases)} cases, {PATH.stat().st_size} bytes')


# --- Drawing configurations ----------------------------------------------------------------------


def _pick(rng, *choices):
  return choices[rng.integers(len(choices))]


def _sizes(rng):
  heads, head_dim = _pick(rng, 2, 4, 8), _pick(rng, 16, 24, 32)
  return {
      'model_type': 'llama',
      'hidden_size': heads * head_dim,
      'num_attention_heads': heads,
      'num_key_value_heads': 2,
      'num_hidden_layers': 2,
      'max_position_embeddings': int(_pick(rng, 2048, 8192, 131072)),
  }


def _base(rng):
  return float(np.round(10 ** rng.uniform(3, 7), 1))


def _factor(rng):
  return float(np.round(rng.uniform(1, 40), 3))


def _linear(rng, sizes):
  return {'factor': _factor(rng)}


def _yarn(rng, sizes):
  drawn = {
      'factor': _factor(rng),
      'original_max_position_embeddings': int(_pick(rng, 512, 4096, 32768)),
      'beta_fast': float(np.round(rng.uniform(8, 64), 2)),
      'beta_slow': float(np.round(rng.uniform(0.25, 4), 2)),
      'truncate': bool(rng.integers(2)),
      'mscale': float(np.round(rng.uniform(0.5, 1.5), 3)),
      'mscale_all_dim': _pick(rng, 0, 1.0, 0.707),
      'attention_factor': float(np.round(rng.uniform(0.5, 2), 3)),
  }
  optional = ('beta_fast', 'beta_slow', 'truncate', 'mscale', 'mscale_all_dim', 'attention_factor')
  dropped = [name for name in optional if rng.random() < 0.4]
  return {name: value for name, value in drawn.items() if name not in dropped}


def _longrope(rng, sizes):
  pairs = sizes['hidden_size'] // sizes['num_attention_heads'] // 2
  lists = {
      name: np.round(np.sort(rng.uniform(1, most, pairs)), 4).tolist()
      for name, most in {'short_factor': 2, 'long_factor': 64}.items()
  }
  sharpening = _pick(rng, {}, {'factor': _factor(rng)}, {'attention_factor': 1.19})
  return {**lists, **sharpening, 'original_max_position_embeddings': int(_pick(rng, 1024, 2048))}


def _llama3(rng, sizes):
  return {
      'factor': _factor(rng),
      'original_max_position_embeddings': int(_pick(rng, 1024, 8192)),
      'low_freq_factor': float(np.round(rng.uniform(0.5, 2), 2)),
      'high_freq_factor': float(np.round(rng.uniform(2.5, 8), 2)),
  }


def _proportional(rng, sizes):
  return {'partial_rotary_factor': float(rng.integers(0, 5)) / 4, 'factor': _factor(rng)}


KINDS = {
    'default': lambda rng, sizes: {},
    'linear': _linear,
    'dynamic': _linear,
    'yarn': _yarn,
    'longrope': _longrope,
    'llama3': _llama3,
    'proportional': _proportional,
}


def _cases(kind, rng):
  """Draws one configuration and yields what it gives, per layer type and length."""
  sizes = _sizes(rng)
  rope = {'rope_type': kind, 'rope_theta': _base(rng), **KINDS[kind](rng, sizes)}
  if kind not in ('default', 'longrope', 'proportional') and rng.random() < 0.3:
    rope['partial_rotary_factor'] = 0.5
  style = _pick(rng, 'new', 'old', 'nested')
  if style == 'nested' and 'truncate' not in rope:  # transformers reads a nested truncate nowhere
    yield from _nested(kind, sizes, rope, rng)
    return
  config = {**sizes, 'rope_parameters': rope}
  if style == 'old':
    partial = {k: rope[k] for k in ('rope_theta', 'partial_rotary_factor') if k in rope}
    scaling = {k: v for k, v in rope.items() if k not in partial}
    config = {**sizes, **partial, 'rope_scaling': scaling}
  for length in _lengths(kind, config, rope, rng):
    yield {'config': config, 'layer_type': None, **_compute(config, kind, None, length)}


def _nested(kind, sizes, rope, rng):
  local = {'rope_type': 'default', 'rope_theta': _base(rng)}
  types_ = {'sliding_attention': local, 'full_attention': rope}
  config = {**sizes, 'layer_types': list(types_), 'rope_parameters': types_}
  for name, kind_ in {'sliding_attention': 'default', 'full_attention': kind}.items():
    for length in _lengths(kind_, config, types_[name], rng):
      yield {'config': config, 'layer_type': name, **_compute(config, kind_, name, length)}


def _lengths(kind, config, rope, rng):
  if kind not in ('dynamic', 'longrope'):
    return [None]
  trained = rope.get('original_max_position_embeddings', config['max_position_embeddings'])
  return [trained, trained + 1, int(trained * rng.uniform(2, 8))]


# --- What transformers gives ---------------------------------------------------------------------


def _compute(config, kind, layer_type, length):
  """Returns frequencies and attention factor in both precisions."""
  return {
      'length': length,
      'float32': _run(config, kind, layer_type, length),
      'float64': _run_wide(config, kind, layer_type, length),
  }


def _run(config, kind, layer_type, length):
  from transformers import LlamaConfig
  from transformers import modeling_rope_utils
  from transformers.models.llama import modeling_llama

  config = LlamaConfig(**copy.deepcopy(config))
  if kind == 'default':
    if layer_type is not None:
      config.rope_parameters = config.rope_parameters[layer_type]
    found = modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
  else:
    compute = modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    found = compute(config, None, seq_len=length, layer_type=layer_type)
  return {'inv_freq': found[0].tolist(), 'attention_factor': float(found[1])}


def _run_wide(*args):
  """Runs the same functions with float64 in the place of float32."""
  import torch
  from transformers import modeling_rope_utils
  from transformers.models.llama import modeling_llama

  wide = types.ModuleType('torch')
  wide.__getattr__ = functools.partial(getattr, torch)
  wide.float = wide.float32 = torch.float64
  try:
    modeling_rope_utils.torch = modeling_llama.torch = wide
    with mock.patch.object(torch.Tensor, 'float', torch.Tensor.double):
      return _run(*args)
  finally:
    modeling_rope_utils.torch = modeling_llama.torch = torch


if __name__ == '__main__':
  main()
