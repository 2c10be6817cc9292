# SPDX-License-Identifier: Apache-2.0
"""Reports on the RoPE of a checkpoint, and on what two checkpoints differ in.

  python -m experiments.rope_report --config_json=DIR_OR_FILE --workdir=OUT [--length=32768] \\
    [--rule='yarn; ntk; linear(factor=4); rope(base=5e6)']
  python -m experiments.rope_report --a=DIR --b=DIR --workdir=OUT

A rule by its name alone is calibrated for the trained and the wanted length; written out, it is
taken as it is; without --rule, all that two lengths calibrate are shown. The weights of a and b are
compared too, where both directories have them as safetensors.
"""

from collections.abc import Sequence
import pathlib

from absl import flags

from experiments import errors
from experiments import output
from experiments.rope import checkpoints
from experiments.rope import facts as rope_facts
from experiments.rope import output as rope_output
from experiments.rope import pair as rope_pair

_CONFIG = flags.DEFINE_string('config_json', None, 'A config.json, or the directory it is in.')
_A = flags.DEFINE_string('a', None, 'A checkpoint: its directory, or its config.json.')
_B = flags.DEFINE_string('b', None, 'The checkpoint to compare with it.')
_LENGTH = flags.DEFINE_integer('length', None, 'Tokens to read; by default what the config allows.')
_TRAINED = flags.DEFINE_integer('trained_length', None, 'Tokens of a training text, if you know.')
_RULES = flags.DEFINE_multi_string('rule', [], "Other rules, as in 'yarn; linear(factor=4)'.")
_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory for the report.')


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise errors.UserError(f'{argv[1]!r} is no flag: write --config_json={argv[1]}')
  one, two = _CONFIG.value is not None, _A.value is not None and _B.value is not None
  if one == two or (one and (_A.value is not None or _B.value is not None)):
    raise errors.UserError(
        'give --config_json=FILE_OR_DIR for one checkpoint, or --a=DIR and --b=DIR for two'
    )
  if not _WORKDIR.value:
    raise errors.UserError('no --workdir was given: name a directory, which is made if need be')
  for flag in (_LENGTH, _TRAINED):
    if flag.value is not None and flag.value < 2:
      raise errors.UserError(f'--{flag.name}={flag.value} cannot be: give at least 2 tokens')
  rules = tuple(rule.strip() for typed in _RULES.value for rule in typed.split(';'))
  asked = rope_facts.Asked(_LENGTH.value, _TRAINED.value, tuple(filter(None, rules)))
  console = output.console()
  if one:
    config = checkpoints.read_config(_CONFIG.value, '--config_json')
    layers = rope_facts.of_config(config, f'--config_json={_CONFIG.value}', asked)
    rope_output.write(_directory(), _CONFIG.value, layers, console)
  else:
    pair = rope_pair.read(_A.value, _B.value, asked, console)
    rope_output.write_pair(_directory(), pair, console)


def _directory() -> pathlib.Path:
  return output.as_directory(_WORKDIR.value, '--workdir')


if __name__ == '__main__':
  errors.run(main)
