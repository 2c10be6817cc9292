# SPDX-License-Identifier: Apache-2.0
"""What the model type says and the keys of a config do not: layout, defaults, kinds of layers."""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

_HALF = (
    'arcee apertus bitnet cwm diffllama dots1 exaone4 falcon gemma gemma2 gemma3_text '
    'gemma3n_text glm4_moe gpt_neox gpt_oss granite granitemoe hunyuan_v1_dense jetmoe lfm2 llama '
    'minimax_m2 ministral mistral mixtral modernbert modernbert-decoder nemotron olmo olmo2 olmoe '
    'persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next seed_oss smollm3 '
    'stablelm starcoder2 vaultgemma'
).split()
_INTERLEAVED = 'cohere cohere2 ernie4_5 ernie4_5_moe glm glm4 helium llama4_text'.split()
_SLIDING_ONLY = ('cohere2', 'exaone4')  # where there is a window, only its layers turn
_NO_ROPE_EVERY = {'llama4_text': 4, 'smollm3': 4}
# Of so many layers in a row the last, or the first, sees everything and the others a window.
_LAST_IS_FULL = {'cohere2': 4, 'exaone4': 4, 'gemma3_text': 6, 'gemma3n_text': 5}
_FIRST_IS_FULL = {'modernbert': 3, 'modernbert-decoder': 3}
LOCAL_BASES = dict.fromkeys(
    ('gemma3_text', 'gemma3n_text', 'modernbert', 'modernbert-decoder'), 1e4
)
# Their default is a scaling, which a file has to spell out.
SCALED = ('apertus', 'cwm', 'gpt_oss')
# What transformers takes where the file gives no base or no rotated part.
BASES = {
    'apertus': 12e6, 'bitnet': 5e5, 'cohere': 5e5, 'cwm': 1e6, 'ernie4_5': 5e5, 'ernie4_5_moe': 5e5,
    'gemma3_text': 1e6, 'gemma3n_text': 1e6, 'gpt_oss': 1.5e5, 'helium': 1e5,
    'lfm2': 1e6, 'llama4_text': 5e5, 'minimax_m2': 5e6, 'mixtral': 1e6, 'modernbert': 1.6e5,
    'modernbert-decoder': 1.6e5, 'phimoe': 1e6, 'smollm3': 2e6,
}
PARTIALS = {
    'glm': 0.5, 'glm4': 0.5, 'glm4_moe': 0.5, 'gpt_neox': 0.25, 'nemotron': 0.5, 'persimmon': 0.5,
    'phi': 0.5, 'qwen3_next': 0.25, 'stablelm': 0.25,
}


def layout_of(config: Config) -> str:
  """Returns 'half' or 'interleaved', by the model type; Llama's where there is none."""
  if 'rope_interleave' in config:
    return 'interleaved' if config['rope_interleave'] else 'half'
  model_type = config.get('model_type', 'llama')
  if model_type not in (*_HALF, *_INTERLEAVED):
    raise ValueError(
        f"model_type={model_type!r} is not known here: give layout='half' where the model turns "
        "channels i and i + width / 2 together, 'interleaved' where it turns 2 i and 2 i + 1."
    )
  return 'half' if model_type in _HALF else 'interleaved'


def layer_types(config: Config) -> tuple[str, ...]:
  """Returns the kind of each layer, a key of what `rope_from_config` returns.

  A layer without positions is 'no_rope'. A config without layers has one of 'full_attention'.
  """
  count = config.get('num_hidden_layers') or 1
  kinds = config.get('layer_types')
  if kinds is None:
    kinds = [_kind(config, i) for i in range(count)]
  if len(kinds) != count and 'num_hidden_layers' in config:
    raise ValueError(f'layer_types lists {len(kinds)} layers, num_hidden_layers={count}.')
  turned = config.get('no_rope_layers')
  every = config.get('no_rope_layer_interval', _NO_ROPE_EVERY.get(config.get('model_type')))
  if not turned:  # 1 for a layer that turns
    turned = [every is None or (i + 1) % every != 0 for i in range(len(kinds))]
  if len(turned) != len(kinds):
    raise ValueError(f'no_rope_layers lists {len(turned)} layers, not {len(kinds)}.')
  if config.get('model_type') in _SLIDING_ONLY and config.get('sliding_window') is not None:
    turned = [turns and kind == 'sliding_attention' for turns, kind in zip(turned, kinds)]
  return tuple(kind if turns else 'no_rope' for turns, kind in zip(turned, kinds))


def _kind(config: Config, layer: int) -> str:
  model_type = config.get('model_type')
  default = 6 if 'rope_local_base_freq' in config else _LAST_IS_FULL.get(model_type)
  pattern = config.get('sliding_window_pattern', default)
  if isinstance(pattern, str):
    raise ValueError(f'sliding_window_pattern={pattern!r} is no number: give layer_types.')
  if pattern and config.get('sliding_window', pattern) is not None:
    return 'sliding_attention' if (layer + 1) % pattern else 'full_attention'
  every = config.get('global_attn_every_n_layers', _FIRST_IS_FULL.get(model_type))
  return 'sliding_attention' if every and layer % every else 'full_attention'
