# SPDX-License-Identifier: Apache-2.0
"""Writes RoPE into a config."""

import ast
from collections.abc import Mapping
from typing import Any

from pe_jax.base import Encoding
from pe_jax.hf._models import Config
from pe_jax.hf._models import layer_types
from pe_jax.hf._read import head_dim
from pe_jax.hf._read import KEYS
from pe_jax.hf._read import load
from pe_jax.hf._read import NAMES
from pe_jax.hf._read import REPLACED
from pe_jax.hf._read import rope_from_config
from pe_jax.hf._read import RULES


def to_config(encodings: Mapping[str, Encoding], config: Config) -> dict[str, Any]:
  """Writes encodings into a config, in the place of what it says about RoPE.

  Args:
    encodings: by layer type, as `rope_from_config` returns them.
    config: the model's config. It is not changed.

  Returns:
    A new config with `rope_parameters`, from which `rope_from_config` reads the same encodings.

  Raises:
    ValueError: an encoding that such a config cannot hold.
  """
  written = {key: value for key, value in load(config).items() if key not in REPLACED}
  if 'no_rope_layers' not in config and 'no_rope_layer_interval' not in config:
    written['layer_types'] = list(layer_types(config))
  tables = {
      kind: _table(encoding, config) for kind, encoding in encodings.items() if kind != 'no_rope'
  }
  same = all(table == next(iter(tables.values())) for table in tables.values())
  written['rope_parameters'] = next(iter(tables.values()), {}) if same else tables
  if rope_from_config(written) != dict(encodings):
    raise ValueError(
        f'{dict(encodings)} cannot be written: read again, the config gives '
        f'{rope_from_config(written)}.'
    )
  return written


def _table(encoding: Encoding, config: Config) -> dict[str, Any] | None:
  name, options = _call(repr(encoding))
  if name == 'none':
    return None
  kinds = {factory.__name__: kind for kind, factory in RULES.items()}
  rule, numbers = options.get('scaling', ('default', {}))
  if name != 'rope' or rule not in kinds:
    raise ValueError(f'{encoding} has no name in a config: it may be rope with {sorted(kinds)}.')
  kind = kinds[rule]
  table = {'rope_type': kind, 'rope_theta': options['base']}
  if kind != 'proportional':
    table['partial_rotary_factor'] = options.get('width', head_dim(config)) / head_dim(config)
  for key in KEYS[kind]:
    if NAMES[key] in numbers and key != 'max_position_embeddings':
      number = numbers[NAMES[key]]
      table[key] = list(number) if isinstance(number, tuple) else number
  return table


def _call(text: str) -> tuple[str, dict[str, Any]]:
  """Reads the call that a record or a rule prints: its name and its options."""
  tree = ast.parse(text, mode='eval').body
  options = {}
  for option in tree.keywords:
    nested = isinstance(option.value, ast.Call)
    options[option.arg] = (
        _call(ast.unparse(option.value)) if nested else ast.literal_eval(option.value)
    )
  return tree.func.id, options
