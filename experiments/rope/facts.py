# SPDX-License-Identifier: Apache-2.0
"""The numbers of a report on RoPE, as JSON holds them. Tables and figures are made of them."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from experiments import errors
from experiments.rope import calibration
from experiments.rope import findings
from experiments.rope import wavelengths
from experiments.rope.calibration import Layer
from experiments.rope.checkpoints import Config

Facts = dict[str, Any]

_POINTS = 160  # of a curve of scores by distance


@dataclasses.dataclass(frozen=True)
class Asked:
  """What the user asks of a checkpoint.

  Attributes:
    length: tokens to read; what the config allows unless given.
    trained: tokens of a training text; what the config says unless given.
    rules: other rules to show, as typed; all that two lengths calibrate unless some are given.
  """

  length: int | None = None
  trained: int | None = None
  rules: tuple[str, ...] = ()


def of_config(config: Config, where: str, asked: Asked) -> list[Facts]:
  """Computes the numbers of each kind of layer that has RoPE.

  Args:
    config: what config.json holds.
    where: names the config in errors.
    asked: lengths and rules.

  Raises:
    UserError: a config that is not understood, a rule that cannot be made, or no layer with RoPE.
  """
  try:
    layers = calibration.layers(config, length=asked.length, trained=asked.trained)
  except ValueError as error:
    raise errors.UserError(f'{where}: {error}') from None
  if not layers:
    raise errors.UserError(f'{where}: no layer has RoPE, so there is nothing to report')
  return [of_layer(config, layer, asked.rules) for layer in layers]


def of_layer(config: Config, layer: Layer, rules: Sequence[str]) -> Facts:
  """Computes all that is reported about one kind of layer.

  Args:
    config: what config.json holds.
    layer: one of `calibration.layers`.
    rules: other rules to show, as typed; all that a length calibrates if there are none. The
      layer's own is the first of 'rules'.
  """
  rotation, length = layer.rotation, layer.length
  inv_freq, attention_factor = rotation.at(layer.text)
  unscaled = rotation.unscaled()
  distances = np.geomspace(1, length, _POINTS)
  phase_errors = wavelengths.phase_errors(inv_freq, layer.text)
  own = [(calibration.short(rotation.rule), rotation)]
  return {
      'kind': layer.kind,
      'layers': layer.count,
      'encoding': layer.encoding,
      'rule': calibration.short(rotation.rule),
      'base': rotation.base,
      'width': rotation.width,
      'head_dim': rotation.head_dim,
      'trained_length': layer.trained,
      'trained_length_from': layer.source,
      'length': length,
      'text_length': layer.text,
      'attention_factor': attention_factor,
      'reach': wavelengths.reach(inv_freq, unscaled, layer.trained),
      'channels': _lists({
          'inv_freq': inv_freq,
          'unscaled': unscaled,
          'wavelength': wavelengths.wavelengths(inv_freq),
          'turns_trained': wavelengths.turns(unscaled, layer.trained),
          'turns': wavelengths.turns(inv_freq, length),
          'stretch': wavelengths.stretch(inv_freq, length, unscaled, layer.trained),
          **{f'{precision}_error': error for precision, error in phase_errors.items()},
      }),
      'distances': distances.tolist(),
      'phase_errors': [_phase_errors(inv_freq, n) for n in _lengths(layer.text)],
      'rules': [
          {'rule': name, **_rule(other, layer, distances)}
          for name, other in own + list(calibration.rotations(rules, layer).items())
      ],
      'findings': [dataclasses.asdict(finding) for finding in findings.find(config, layer)],
  }


def _rule(rotation: wavelengths.Rotation, layer: Layer, distances: np.ndarray) -> Facts:
  """Computes what a rule does where a layer was trained and where it is to read."""
  try:
    inv_freq, attention_factor = rotation.at(layer.text)
  except ValueError as error:
    return {'reason': str(error)}
  unscaled = layer.rotation.unscaled()
  stretch = wavelengths.stretch(inv_freq, layer.length, unscaled, layer.trained)
  decay = functools.partial(wavelengths.decay, inv_freq, attention_factor, rotation.head_dim)
  at_trained, at_length = decay(np.array([layer.trained, layer.length]))
  return {
      'inv_freq': inv_freq.tolist(),
      'attention_factor': attention_factor,
      'slowest': float(wavelengths.wavelengths(inv_freq).max()),
      'complete': int((wavelengths.turns(inv_freq, layer.length) >= 1).sum()),
      'past': int((stretch > findings.TOLERANCE).sum()),
      'reach': wavelengths.reach(inv_freq, unscaled, layer.trained),
      'decay': decay(distances).tolist(),
      'decay_at_trained': float(at_trained),
      'decay_at_length': float(at_length),
  }


def _lengths(longest: int) -> list[int]:
  powers = [2**i for i in range(7, 40) if 2**i < longest]
  return [*powers, longest]


def _phase_errors(inv_freq: np.ndarray, length: int) -> Facts:
  by_channel = wavelengths.phase_errors(inv_freq, length)
  return {'length': length, **{name: float(error.max()) for name, error in by_channel.items()}}


def _lists(arrays: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
  return {name: np.asarray(array, np.float64).tolist() for name, array in arrays.items()}
