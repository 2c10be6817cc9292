# SPDX-License-Identifier: Apache-2.0
"""What is out of calibration in a checkpoint's RoPE, in sentences that say what to do."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from experiments.rope import calibration
from experiments.rope import wavelengths
from experiments.rope.calibration import Layer
import pe_jax

TOLERANCE = 1.01  # of a stretch; an angle that is 1 % larger than in training is no news
_USUAL_BASE = 1e4


@dataclasses.dataclass(frozen=True)
class Finding:
  """One sentence about one setting: a 'warning' is to be acted on, a 'note' to be known."""

  level: str
  setting: str
  text: str


def find(config: Mapping[str, Any], layer: Layer) -> list[Finding]:
  """Lists what is out of calibration in one kind of layer, warnings first."""
  name, options = calibration.call_of(layer.rotation.rule)
  found = [
      *_original_length(config, layer, name, options),
      *_reach(layer, name, options),
      *_more_than_needed(layer, options),
      *_base(layer, name),
      *_truncate(config, layer, name, options),
      *_attention_factor(layer, name, options),
      *_betas(name, options),
      *_by_length(layer, name),
      *_phases(layer),
  ]
  return sorted(found, key=lambda finding: finding.level != 'warning')


def _warn(setting: str, text: str) -> Finding:
  return Finding('warning', setting, text)


def _note(setting: str, text: str) -> Finding:
  return Finding('note', setting, text)


def _n(tokens: float) -> str:
  return f'{tokens:,.0f}'


# --- Lengths -------------------------------------------------------------------------------------


def _original_length(config, layer: Layer, name: str, options) -> Iterator[Finding]:
  original, factor = options.get('original_length'), options.get('factor', 1.0)
  longest = config.get('max_position_embeddings')
  if original is None:
    return
  elif layer.source == '--trained_length' and original != layer.trained:
    yield _warn(
        'original_length',
        f'the rule takes {_n(original)} for the trained length, which you say was'
        f' {_n(layer.trained)}: it decides by the wrong number of turns which channels to slow'
        f' down. Set it to {_n(layer.trained)} and the factor to'
        f' {layer.length / layer.trained:g}.',
    )
  elif original != longest or factor == 1 or name == 'dynamic_ntk':  # which reads no other key
    return
  elif any('original_max_position_embeddings' in t for t in _tables(config, layer.kind)):
    yield _note(
        'max_position_embeddings',
        f'equals the original length, {_n(original)}; the rule is made for'
        f' {_n(original * factor)}. Programs that stop at max_position_embeddings will not read'
        ' that far.',
    )
  else:
    yield _warn(
        'original_length',
        f'not given, so it is max_position_embeddings={_n(longest)}. If that was raised for this'
        ' factor, the rule is calibrated for the wrong length: give'
        ' original_max_position_embeddings, the length before scaling.',
    )


def _tables(config: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
  """Returns the config and the tables in it that speak of one kind of layer, outermost first."""
  outer = [config.get('rope_parameters'), config.get('rope_scaling')]
  outer = [table for table in outer if isinstance(table, Mapping)]
  inner = [table[kind] for table in outer if isinstance(table.get(kind), Mapping)]
  return [config, *outer, *inner]


def _reach(layer: Layer, name: str, options) -> Iterator[Finding]:
  rotation, length = layer.rotation, layer.length
  inv_freq, _ = rotation.at(layer.text)
  stretch = wavelengths.stretch(inv_freq, length, rotation.unscaled(), layer.trained)
  past = int((stretch > TOLERANCE).sum())
  factor, needed = options.get('factor'), length / layer.trained
  met = (
      f'{past} of {len(stretch)} channel pairs meet angles up to {stretch.max():.2f} times those of'
      f' {_n(layer.trained)} trained tokens'
  )
  if not past:
    return
  elif name.startswith('dynamic'):  # whose factor is no ratio of lengths
    yield _note('rope_type', f'{name} leaves a gap at this length: {met}.')
  elif factor is None:
    yield _warn(
        'rope_type',
        f'no factor reaches {_n(length)} tokens: {met}. Scale by {needed:g}, for instance'
        f' yarn(factor={needed:g}, original_length={layer.trained:.10g}), or train at this length.',
    )
  elif factor * TOLERANCE < needed:
    yield _warn(
        'factor',
        f'{factor:g} x {_n(layer.trained)} = {_n(factor * layer.trained)} tokens do not reach'
        f' {_n(length)}: {met}. Take {needed:g}, unless the model was trained further at this'
        ' length with this factor.',
    )
  else:
    yield _note('rope_type', f'{name} with the right factor still leaves a gap: {met}.')


def _more_than_needed(layer: Layer, options) -> Iterator[Finding]:
  factor, needed = options.get('factor', 1.0), max(layer.length / layer.trained, 1.0)
  windowed = layer.length < layer.text  # where other layers need the factor
  if factor >= 2 * needed and not windowed and not layer.rotation.rule.length_dependent:
    yield _note(
        'factor',
        f'{factor:g} x {_n(layer.trained)} = {_n(factor * layer.trained)} tokens,'
        f' {factor / needed:g} times the {_n(layer.length)} to be read. The rule slows its'
        ' channels for short texts too: a factor beyond need blurs near distances for nothing.',
    )


def _by_length(layer: Layer, name: str) -> Iterator[Finding]:
  if layer.rotation.rule.length_dependent:
    yield _note(
        'rope_type',
        f'{name} changes the frequencies with the length of the text, shown here at'
        f' {_n(layer.length)} tokens. Keys must be cached before they are rotated.',
    )


# --- Numbers of a rule ---------------------------------------------------------------------------


def _base(layer: Layer, name: str) -> Iterator[Finding]:
  base, width = layer.rotation.base, layer.rotation.width
  if name != 'default' or base <= _USUAL_BASE or layer.kind == 'sliding_attention':
    return
  factor = (base / _USUAL_BASE) ** ((width - 2) / width)
  yield Finding(
      'warning' if layer.length > layer.trained else 'note',
      'rope_theta',
      f'the base is {base:g} and no rule scales. If the model was trained with it, all is well up'
      f' to {_n(layer.trained)} tokens. If it was trained with {_USUAL_BASE:g} and the base raised'
      f' afterwards, that is ntk(factor={factor:.3g}): write it as a rule, or train further.',
  )


def _truncate(config, layer: Layer, name: str, options) -> Iterator[Finding]:
  if options.get('truncate', True):
    return
  rounded = getattr(pe_jax.scaling, name)(**options | {'truncate': True})
  rotation, trained_so = layer.rotation, config.get('model_type') == 'gpt_oss'
  usual, _ = rounded(rotation.width, rotation.base, layer.text)
  moved = np.max(np.abs(rotation.at(layer.text)[0] / usual - 1))
  text = (
      f'off: frequencies differ by up to {moved:.1%} from those of a ramp whose ends are whole'
      ' channels, the rule as published. '
      + ('This model was trained so.' if trained_so else 'Right only for a model trained so.')
  )
  ignored = not any('truncate' in table for table in _tables(config, ''))
  if ignored:
    text += ' transformers 5.24 ignores truncate in the table of one kind of layer.'
  yield Finding('note' if trained_so and not ignored else 'warning', 'truncate', text)


def _attention_factor(layer: Layer, name: str, options) -> Iterator[Finding]:
  if name not in ('yarn', 'longrope') or 'factor' not in options:
    return
  used, usual = layer.rotation.at(layer.text)[1], _usual_attention_factor(name, options)
  scores = f'Scores are multiplied by {used**2:.4f} instead of {usual**2:.4f}.'
  if abs(used - usual) < 1e-6:
    return
  elif 'attention_factor' in options:
    yield _warn(
        'attention_factor',
        f'{used:.4f} is given in place of {usual:.4f}, which factor={options["factor"]:g} gives.'
        f' {scores} Right only for a model trained so.',
    )
  else:
    yield _note(
        'mscale',
        f'mscale={options["mscale"]:g} and mscale_all_dim={options["mscale_all_dim"]:g} make the'
        f' attention factor {used:.4f}, not {usual:.4f}. {scores} DeepSeek puts the rest into the'
        ' scale of the softmax: see that your attention does.',
    )


def _usual_attention_factor(name: str, options) -> float:
  if name == 'yarn':
    return float(pe_jax.scaling.yarn_attention_factor(options['factor']))
  numbers = options['factor'], options['original_length']
  return float(pe_jax.scaling.longrope_attention_factor(*numbers))


_USUAL = {'beta_fast': 32.0, 'beta_slow': 1.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0}


def _betas(name: str, options) -> Iterator[Finding]:
  changed = {key: options[key] for key in _USUAL if options.get(key, _USUAL[key]) != _USUAL[key]}
  if changed:
    shown = ', '.join(f'{key}={value:g}' for key, value in changed.items())
    yield _note(next(iter(changed)), f'{shown}: not the values {name} was published with.')
  for key in ('beta_fast', 'high_freq_factor'):
    most = options.get('original_length', np.inf) / (2 * np.pi)
    if options.get(key, 0.0) > most:
      yield _warn(
          key,
          f'even the fastest channel turns only {most:.1f} times within the original length, below'
          f' {key}={options[key]:g}: none stays as it was trained. Choose a smaller one.',
      )


# --- Precision -----------------------------------------------------------------------------------


def _phases(layer: Layer) -> Iterator[Finding]:
  inv_freq, _ = layer.rotation.at(layer.text)
  errors = wavelengths.phase_errors(inv_freq, layer.text)
  plain, cast = errors['float32'].max(), errors['bfloat16_frequencies'].max()
  if plain >= 0.01:
    yield _note(
        'precision',
        f'at {_n(layer.text)} tokens a plain float32 product of position and frequency errs by'
        f' {plain:.2g} rad, and one with frequencies in bfloat16 by {cast:.2g}.',
    )
