# SPDX-License-Identifier: Apache-2.0
"""Reads RoPE out of a config."""

from collections.abc import Mapping
import copy
import json
import os
import pathlib
import re
from typing import Any

from pe_jax import scaling
from pe_jax.base import Encoding
from pe_jax.encodings._none import none
from pe_jax.encodings._rope import rope
from pe_jax.hf import _models
from pe_jax.hf._models import Config


def rope_from_config(
    config: Config | str | os.PathLike, *, layout: str | None = None
) -> dict[str, Encoding]:
  """Reads the rotary encoding of every kind of layer.

  Args:
    config: what config.json holds, or the path of the file or of its directory. It is not changed.
    layout: 'half' or 'interleaved'. The file does not say it; without it the model type decides.

  Returns:
    Encodings by the names in `layer_types`: {'full_attention': rope(...)} where all layers agree.

  Raises:
    ValueError: a key, a value or a model type that is not known, and what contradicts itself; the
      message starts with the key.

  >>> config = {'hidden_size': 64, 'num_attention_heads': 4, 'rope_theta': 1e6,
  ...           'rope_scaling': {'type': 'linear', 'factor': 4}}
  >>> rope_from_config(config)
  {'full_attention': rope(base=1000000.0, scaling=linear(factor=4.0))}
  """
  config = load(config)
  _check_keys(config)
  layout = _models.layout_of(config) if layout is None else layout
  return {kind: _encoding(config, *at, layout) for kind, at in _by_layer_type(config).items()}


def load(config: Config | str | os.PathLike) -> dict[str, Any]:
  """Returns a copy of a config, read from config.json if a path is given.

  Raises:
    ValueError: no such file, or one that holds no JSON object.
  """
  if isinstance(config, Mapping):
    return copy.deepcopy(dict(config))
  path = pathlib.Path(config)
  path = path / 'config.json' if path.is_dir() else path
  try:
    read = json.loads(path.read_text())
  except OSError as error:
    raise ValueError(f'{path} cannot be read ({error.strerror}): give a config.json.') from None
  except ValueError as error:
    raise ValueError(f'{path} is not valid JSON: {error}.') from None
  if not isinstance(read, dict):
    raise ValueError(f'{path} holds {type(read).__name__}, not a JSON object.')
  return read


# --- What the keys say ---------------------------------------------------------------------------

_BASE_KEYS = ('rope_theta', 'rotary_emb_base', 'global_rope_theta')
_LOCAL_KEYS = ('rope_local_base_freq', 'local_rope_theta')
_PART_KEYS = ('partial_rotary_factor', 'rotary_pct')
_TABLE_KEYS = ('rope_parameters', 'rope_scaling')
_LENGTH = 'original_max_position_embeddings'
REPLACED = (*_BASE_KEYS, *_LOCAL_KEYS, *_PART_KEYS, *_TABLE_KEYS, _LENGTH)
_READ = (*REPLACED, 'max_position_embeddings', 'no_rope_layers', 'no_rope_layer_interval',
         'rope_interleave', 'position_embedding_type')
_OFF = ('alibi', 'attn_temperature_tuning', 'use_logn_attn', 'use_dynamic_ntk')
POSITION_KEYS = (*_READ, *_OFF)
_ABOUT_POSITIONS = re.compile(
    '(?<!p)rope|rotary|nope|theta|position|alibi|logn|ntk|yarn|temperature_tun'
)


def _check_keys(config: Config):
  if 'text_config' in config and not any(key in config for key in REPLACED):
    raise ValueError("text_config: this is a model of several parts: pass config['text_config'].")
  for key, value in config.items():
    if key in _OFF and value:
      raise ValueError(f'{key}={value!r} acts on positions and is no part of RoPE: not read here.')
    if key not in POSITION_KEYS and _ABOUT_POSITIONS.search(key):
      raise ValueError(f'{key}={value!r} is not known here: known keys are {sorted(_READ)}.')
  if config.get('position_embedding_type') not in (None, 'rope', 'rotary'):
    raise ValueError(
        f'position_embedding_type={config["position_embedding_type"]!r} is not RoPE: allowed are '
        "'rope' and 'rotary'."
    )


def _by_layer_type(config: Config) -> dict[str, tuple[str, Config | None]]:
  """Finds the table of every kind of layer, and where it stands."""
  counted = any(key in config for key in ('layer_types', 'num_hidden_layers'))
  kinds = _models.layer_types(config) if counted else ()
  where, table = _one(config, _TABLE_KEYS, {})
  if not isinstance(table, Mapping):
    raise ValueError(f'{where}={table!r} is not a table of keys and values.')
  if config.get('model_type') in _models.SCALED and not config.keys() & {*_TABLE_KEYS}:
    raise ValueError(f'{where} is missing: {config["model_type"]} scales RoPE, so give its table.')
  nested = any(isinstance(value, Mapping) for value in table.values())
  default = _models.LOCAL_BASES.get(config.get('model_type'))
  local_key, local = _one(config, _LOCAL_KEYS, default)
  if nested:
    kinds += tuple(table)
  elif local is not None:
    kinds += ('full_attention', 'sliding_attention')
  found = {'no_rope': ('no_rope', None)}
  for kind in set(kinds or ('full_attention',)) - found.keys():
    if nested:
      found[kind] = (f'{where}[{kind!r}]', _entry(where, table, kind))
    elif local is not None and kind == 'sliding_attention':
      found[kind] = (local_key, {'rope_theta': local})
    else:
      found[kind] = (where, _agreeing(config, where, table))
  return {kind: found[kind] for kind in kinds or ('full_attention',)}


def _entry(where: str, table: Config, kind: str) -> Config | None:
  if beside := [key for key, value in table.items() if not isinstance(value, Mapping | None)]:
    raise ValueError(f'{where} holds tables for layer types, and {beside} beside them.')
  if kind not in table:
    raise ValueError(f'{where} has tables for {list(table)}, but there are layers of {kind!r}.')
  return table[kind]


def _agreeing(config: Config, where: str, table: Config) -> Config:
  """Returns the one table of a model, unless keys beside it say something else."""
  for key, spellings in {
      'rope_theta': _BASE_KEYS, 'partial_rotary_factor': _PART_KEYS, _LENGTH: (_LENGTH,)
  }.items():
    beside, value = _one(config, spellings)
    if value is not None and table.get(key) not in (None, value):
      raise ValueError(f'{beside}={value!r} and {where}[{key!r}]={table[key]!r}: keep one.')
  return table


def _one(config: Config, keys: tuple[str, ...], default: Any = None) -> tuple[str, Any]:
  """Returns the key and value that one of several spellings has; two that differ are an error."""
  given = {key: config[key] for key in keys if config.get(key) is not None}
  if len({json.dumps(value, sort_keys=True) for value in given.values()}) > 1:
    raise ValueError(f'{" and ".join(given)} contradict each other: {given}. Keep one.')
  return next(iter(given.items()), (keys[0], default))


# --- One table -----------------------------------------------------------------------------------

# Names of the options, theirs and ours. The original length and the rotated part stand apart, as
# they may stand beside the table.
_SAME = {name: name for name in (
    'attention_factor', 'beta_fast', 'beta_slow', 'factor', 'high_freq_factor', 'long_factor',
    'low_freq_factor', 'mscale', 'mscale_all_dim', 'short_factor', 'truncate')}
NAMES = {
    **_SAME,
    _LENGTH: 'original_length',
    'max_position_embeddings': 'original_length',
    'partial_rotary_factor': 'fraction',
}
RULES = {
    'default': scaling.default,
    'linear': scaling.linear,
    'dynamic': scaling.dynamic_ntk,
    'yarn': scaling.yarn,
    'longrope': scaling.longrope,
    'llama3': scaling.llama3,
    'proportional': scaling.proportional,
}
KEYS = {
    'default': (),
    'linear': ('factor',),
    'dynamic': ('factor', 'max_position_embeddings'),
    'yarn': ('factor', _LENGTH, 'attention_factor', 'beta_fast', 'beta_slow', 'mscale',
             'mscale_all_dim', 'truncate'),
    'longrope': ('short_factor', 'long_factor', _LENGTH, 'factor', 'attention_factor'),
    'llama3': ('factor', _LENGTH, 'low_freq_factor', 'high_freq_factor'),
    'proportional': ('factor', 'partial_rotary_factor'),
}


def _encoding(config: Config, where: str, table: Config | None, layout: str) -> Encoding:
  if table is None:
    return none()
  kind = _rope_type(where, table)
  always = ('rope_type', 'type', 'rope_theta', 'partial_rotary_factor')
  if unknown := sorted(table.keys() - {*always, *KEYS[kind]}):
    raise ValueError(
        f'{where} of type {kind!r} has keys that are not known here, {unknown}: known ones are '
        f'{[*always, *KEYS[kind]]}.'
    )
  values = _values(config, table, kind)
  base, part = values.pop('rope_theta'), values['partial_rotary_factor']
  width = head_dim(config)
  if kind != 'proportional':
    width = int(width * values.pop('partial_rotary_factor'))
  options = {NAMES[key]: value for key, value in values.items()}
  try:
    rule = RULES[kind](**options)
    whole = kind == 'proportional' or part == 1
    return rope(base=base, layout=layout, width=None if whole else width, scaling=rule)
  except ValueError as error:
    raise ValueError(f'{where} of type {kind!r}: {error}') from None


def _rope_type(where: str, table: Config) -> str:
  _, kind = _one(table, ('rope_type', 'type'), 'default')
  kind = 'longrope' if kind == 'su' else kind
  if kind not in RULES:
    raise ValueError(f"{where}['rope_type']={kind!r} is not known: choose one of {list(RULES)}.")
  return kind


def _values(config: Config, table: Config, kind: str) -> dict[str, Any]:
  """Collects what the table says, what stands beside it and what goes without saying."""
  model, length = config.get('model_type'), config.get('max_position_embeddings')
  values = {
      'rope_theta': _one(config, _BASE_KEYS, _models.BASES.get(model, 1e4))[1],
      'partial_rotary_factor': _one(config, _PART_KEYS, _models.PARTIALS.get(model, 1.0))[1],
  }
  if _LENGTH in KEYS[kind]:
    values[_LENGTH] = config.get(_LENGTH) or length
  if kind == 'dynamic':
    values['max_position_embeddings'] = length
  known = {*values, *KEYS[kind]}
  values |= {key: value for key, value in table.items() if key in known and value is not None}
  if kind in ('yarn', 'longrope') and length and 'factor' not in values:
    values['factor'] = max(length / values[_LENGTH], 1.0)
  for key, value in values.items():
    for number in value if key in ('short_factor', 'long_factor') else [value]:
      if not isinstance(number, int | float) or isinstance(number, bool) != (key == 'truncate'):
        raise ValueError(f'{key}={value!r} is not what type {kind!r} takes: check its type.')
  # Betas of 0 count as absent, as in transformers.
  return {key: v for key, v in values.items() if v or key not in ('beta_fast', 'beta_slow')}


def head_dim(config: Config) -> int:
  """Returns the width of a head, as given or from the model's."""
  if config.get('head_dim') is not None:
    return config['head_dim']
  width, heads = config.get('hidden_size'), config.get('num_attention_heads')
  if width is None or heads is None:
    raise ValueError(f'hidden_size={width}, num_attention_heads={heads}: give head_dim, or both.')
  for name, size in (('hidden_size', width), ('num_attention_heads', heads)):
    if not isinstance(size, int) or size < 1:
      raise ValueError(f'{name}={size!r} must be a positive integer.')
  if width % heads:
    raise ValueError(f'hidden_size={width} is no multiple of num_attention_heads={heads}.')
  return width // heads
