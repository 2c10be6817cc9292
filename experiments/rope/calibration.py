# SPDX-License-Identifier: Apache-2.0
"""Which length a checkpoint was trained at and which it is to read, and the rules that fit both."""

import ast
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import inspect
from typing import Any

from experiments import errors
from experiments import parse
from experiments.rope import wavelengths
import pe_jax
from pe_jax import hf

# What a length alone calibrates; the lists of longrope and given are found by search.
RULES = (
    'default', 'linear', 'ntk', 'ntk_fixed', 'ntk_mixed', 'ntk_by_parts', 'yarn', 'llama3',
    'dynamic_ntk', 'dynamic_yarn',
)


@dataclasses.dataclass(frozen=True)
class Layer:
  """One kind of layer of a checkpoint.

  Attributes:
    kind: 'full_attention', 'sliding_attention', ...
    count: how many layers of the model are of this kind.
    encoding: as it prints.
    rotation: its numbers.
    trained: tokens of a training text that a query could look back on.
    source: where `trained` is from.
    length: tokens that it is to look back on.
    text: tokens of a text; more than `length` where a window ends the looking back.
  """

  kind: str
  count: int
  encoding: str
  rotation: wavelengths.Rotation
  trained: float
  source: str
  length: int
  text: int


def layers(config: Mapping[str, Any], *, length: int | None, trained: float | None) -> list[Layer]:
  """Reads the kinds of layers that turn.

  Args:
    config: what config.json holds.
    length: tokens to read, max_position_embeddings unless given.
    trained: tokens of the texts it was trained on; what the config says unless given.

  Raises:
    ValueError: a config that cannot be read, or without a length where none is given.
  """
  encodings, counted = hf.rope_from_config(config), hf.layer_types(config)
  width = hf.head_dim(config)
  rotations = {kind: wavelengths.rotation(e, width) for kind, e in encodings.items()}
  found = [
      _layer(config, kind, counted.count(kind), encodings[kind], rotation, length, trained)
      for kind, rotation in rotations.items()
      if rotation is not None
  ]
  for layer in found:
    layer.rotation.at(layer.text)  # refuses numbers that do not fit together
  return found


def _layer(config, kind, count, encoding, rotation, length, trained) -> Layer:
  trained, source = _trained(config, rotation.rule, trained)
  text = length or config.get('max_position_embeddings') or int(trained)
  length = text
  window = config.get('sliding_window')
  if kind == 'sliding_attention' and window:
    source = f'sliding_window={window}' if window < trained else source
    trained, length = min(trained, window), min(length, window)
  return Layer(kind, count, repr(encoding), rotation, float(trained), source, length, text)


def _trained(config, rule, trained: float | None) -> tuple[float, str]:
  if trained is not None:
    return trained, '--trained_length'
  _, options = call_of(rule)
  if 'original_length' in options:
    return options['original_length'], 'the original length of its rule'
  for key in ('original_max_position_embeddings', 'max_position_embeddings'):
    if config.get(key):
      return config[key], key
  raise ValueError(
      'the config has no max_position_embeddings: give --trained_length, the tokens of a training'
      ' text, and --length, the tokens to read'
  )


def call_of(rule: pe_jax.scaling.Rule) -> tuple[str, dict[str, Any]]:
  """Returns the name of a rule and its options; those that it leaves out have their defaults."""
  tree = ast.parse(repr(rule), mode='eval').body
  given = {option.arg: ast.literal_eval(option.value) for option in tree.keywords}
  parameters = inspect.signature(getattr(pe_jax.scaling, tree.func.id, dict)).parameters
  defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
  return tree.func.id, {name: v for name, v in (defaults | given).items() if v is not None}


def short(rule: pe_jax.scaling.Rule) -> str:
  """Writes a rule for a table: 'yarn(factor=4, original_length=4096)', defaults left out."""
  name, options = call_of(rule)
  parameters = inspect.signature(getattr(pe_jax.scaling, name, dict)).parameters
  shown = [
      f'{key}={_shown(value)}'
      for key, value in options.items()
      if key not in parameters or value != parameters[key].default
  ]
  return f'{name}({", ".join(shown)})' if shown else name


def _shown(value: Any) -> str:
  if isinstance(value, tuple):
    return f'[{len(value)} numbers]'
  return f'{value:.10g}' if isinstance(value, float) else f'{value}'


# --- Other rules ---------------------------------------------------------------------------------


def calibrated(name: str, layer: Layer) -> pe_jax.scaling.Rule:
  """Makes the rule of that name that takes the trained length to the wanted one."""
  if name not in RULES:
    raise errors.UserError(
        f'--rule={name}: a length alone calibrates {errors.closest_first(name, RULES)}. Any other'
        " is written out, as in --rule='proportional(fraction=0.5)'"
    )
  make = getattr(pe_jax.scaling, name)
  numbers = {
      'factor': max(layer.length / layer.trained, 1.0),
      'original_length': layer.trained,
  }
  return make(**{key: numbers[key] for key in numbers if key in inspect.signature(make).parameters})


def rotations(typed: Sequence[str], layer: Layer) -> dict[str, wavelengths.Rotation]:
  """Reads rules, all that a length calibrates unless some are typed.

  Args:
    typed: `yarn` is calibrated for the lengths, `yarn(factor=4, original_length=4096)` taken as it
      is, and so is a whole `rope(base=5e6)`.
    layer: gives the base, the width and the lengths.

  Returns:
    By the rule, or by the encoding that was typed.

  Raises:
    UserError: a rule that cannot be read, or that turns other channels than the layer.
  """
  own = layer.rotation
  found = {}
  for one in typed or RULES:
    if '(' not in one:
      rule = calibrated(one, layer)
      found[short(rule)] = dataclasses.replace(own, rule=rule)
    elif one.startswith('rope('):
      found[one] = _written(one, own.head_dim)
      if found[one].width != own.width:
        raise errors.UserError(
            f'--rule={one!r} turns {found[one].width} channels and the checkpoint {own.width} of'
            f' {own.head_dim}: give rope(width={own.width}, ...)'
        )
    else:
      rule = _written(f'rope(scaling=scaling.{one})', own.head_dim).rule
      found[one] = dataclasses.replace(own, rule=rule)
  return found


def _written(encoding: str, head_dim: int) -> wavelengths.Rotation:
  return wavelengths.rotation(parse.encoding(encoding), head_dim)
