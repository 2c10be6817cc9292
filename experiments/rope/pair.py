# SPDX-License-Identifier: Apache-2.0
"""What is to be said about two checkpoints."""

import dataclasses
import pathlib

from rich import console as rich_console
from rich import progress as rich_progress

from experiments.rope import checkpoints
from experiments.rope import facts as rope_facts
from experiments.rope import findings
from experiments.rope import weights
from experiments.rope.checkpoints import Setting
from experiments.rope.facts import Facts
from experiments.rope.output import Pair
from pe_jax import hf


def read(a: str, b: str, asked: rope_facts.Asked, console: rich_console.Console) -> Pair:
  """Compares two checkpoints: their configs and, where both have them, their weights.

  Both are read at one length, the longer of what the configs allow unless one is asked for.

  Raises:
    UserError: a config or a file of weights that cannot be read.
  """
  configs = checkpoints.read_config(a, '--a'), checkpoints.read_config(b, '--b')
  if asked.length is None:
    lengths = [config.get('max_position_embeddings') or 0 for config in configs]
    asked = dataclasses.replace(asked, length=max(lengths) or None)
  facts = [
      rope_facts.of_config(config, where, asked)
      for config, where in zip(configs, (f'--a={a}', f'--b={b}'), strict=True)
  ]
  settings, layers = checkpoints.settings_that_differ(*configs), _side_by_side(configs, facts)
  found = {name: weights.find(pathlib.Path(name).expanduser()) for name in (a, b)}
  compared = _compare(*found.values(), console) if all(found.values()) else None
  if compared is None:
    missing = ' and '.join(name for name, tensors in found.items() if not tensors)
    weighed = f'Weights: not compared: no safetensors in {missing}.'
  else:
    weighed = f'Weights: {compared.verdict}: {compared.reason}.'
  return Pair(
      names=(a, b),
      settings=settings,
      layers=layers,
      weights=compared,
      verdicts=[_on_configs(settings, layers), weighed],
      findings=[dataclasses.asdict(f) for f in _findings(layers, compared)],
  )


def _compare(a, b, console: rich_console.Console) -> weights.Comparison:
  bar = rich_progress.Progress(console=console, transient=True, disable=not console.is_terminal)
  with bar:
    task = bar.add_task('comparing weights', total=sum(tensor.size for tensor in a.values()))
    return weights.compare(a, b, lambda values: bar.advance(task, values))


def _side_by_side(configs, layers) -> list[tuple[Facts, Facts]]:
  """Pairs the kinds that layers at the same place have; layers without RoPE are left out."""
  by_kind = [{facts['kind']: facts for facts in side} for side in layers]
  kinds = [hf.layer_types(config) for config in configs]
  places = dict.fromkeys(zip(*kinds, strict=False))
  return [
      (by_kind[0][a], by_kind[1][b]) for a, b in places if a in by_kind[0] and b in by_kind[1]
  ]


def _on_configs(settings: list[Setting], pairs: list[tuple[Facts, Facts]]) -> str:
  rope, model = ([s.key for s in settings if s.about == about] for about in ('rope', 'model'))
  if not rope and not model:
    return 'Configs: the same model.'
  if model:
    also = f', and RoPE in {", ".join(rope)}' if rope else ''
    return f'Configs: they differ in more than RoPE: {", ".join(model)}{also}.'
  same = pairs and all(a['encoding'] == b['encoding'] for a, b in pairs)
  told = ' It is the same encoding, written otherwise or made for another length.' if same else ''
  return f'Configs: they differ only in RoPE settings: {", ".join(rope)}.{told}'


def _findings(pairs, compared: weights.Comparison | None) -> list[findings.Finding]:
  return [
      found
      for a, b in pairs
      for found in (*_base(a, b, compared), *_trained_otherwise(a, b, compared))
  ]


def _base(a: Facts, b: Facts, compared: weights.Comparison | None) -> list[findings.Finding]:
  if a['base'] == b['base'] or a['rule'] != b['rule']:
    return []
  same = compared is not None and compared.verdict == 'same weights'
  factor = (b['base'] / a['base']) ** ((b['width'] - 2) / b['width'])
  reads = f'ntk(factor={factor:.3g}) on a' if factor > 1 else f'a compression by {1 / factor:.3g}'
  text = (
      f'{b["kind"]}: the base goes from {a["base"]:g} to {b["base"]:g} and no rule changes with it.'
      f' That is {reads}: '
      + (
          'the weights are the same, so b was not trained for it. Keep the base and write a rule.'
          if same
          else 'right only if b was trained with it.'
      )
  )
  return [findings.Finding('warning' if same else 'note', 'rope_theta', text)]


def _trained_otherwise(a, b, compared: weights.Comparison | None) -> list[findings.Finding]:
  if compared is None or compared.verdict != 'same weights' or a['rule'] == b['rule']:
    return []
  text = (
      f'{b["kind"]}: the weights are the same and {a["rule"]} becomes {b["rule"]}: b relies on the'
      ' rule alone. Without training at its length, compare losses at short lengths too.'
  )
  return [findings.Finding('note', 'rope_type', text)]
