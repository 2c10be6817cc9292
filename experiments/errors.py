# SPDX-License-Identifier: Apache-2.0
"""Mistakes of the person at the keyboard, told in a line or two instead of a traceback."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import difflib
import logging
import pathlib
import sys

from absl import app
from absl import flags
import ml_collections
from ml_collections import config_flags


class UserError(Exception):
  """A mistake of the user's. The message says what was given, what is allowed and what to do."""


def closest_first(name: str, allowed: Iterable[str]) -> str:
  """Lists the allowed names, those that look like `name` first."""
  allowed = sorted(allowed)
  near = difflib.get_close_matches(name, allowed, n=3, cutoff=0.5)
  return ', '.join(near + [other for other in allowed if other not in near]) or '(none)'


def run(main: Callable[[Sequence[str]], None], *, stopped: str = '') -> None:
  """Runs an absl main; a UserError or a flag that cannot be read ends with exit status 2.

  A disk that is full or may not be written to ends with status 1, in one line too.

  Args:
    main: what to run.
    stopped: what to add to the words that tell of Ctrl-C.
  """

  def told(argv: Sequence[str]) -> None:
    logging.getLogger('jax').setLevel(logging.WARNING)  # else it names every platform it misses
    try:
      main(argv)
    except UserError as error:
      _stop(str(error), 2)
    except OSError as error:  # a full disk, a directory that may not be written
      _stop(f'{error}: mend that and start again', 1)
    except KeyboardInterrupt:
      _stop(f'stopped by the keyboard{stopped}', 130)

  app.run(told, flags_parser=_parse_flags)


def _parse_flags(argv: Sequence[str]) -> list[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    _stop(_last_words(error), 2)
  except AttributeError as error:  # from ml_collections
    _stop(_no_field(error), 2)


def define_config(default: pathlib.Path) -> flags.FlagHolder:
  """Defines --config, a file of settings whose fields `--config.field=value` overrides."""
  try:
    return config_flags.DEFINE_config_file('config', str(default), 'Settings: FILE.py[:variant].')
  except AttributeError as error:  # with a default, overrides are read here and not with the flags
    _stop(_no_field(error), 2)


def _no_field(error: AttributeError) -> str:
  return f'the config has no field {error}: see the file of --config (by default under configs/)'


def load_config(value: ml_collections.ConfigDict) -> ml_collections.FrozenConfigDict:
  """Freezes the value of a config flag; a file that failed to load is told of here."""
  try:
    return ml_collections.FrozenConfigDict(value)
  except OSError as error:
    raise UserError(f'--config cannot be loaded: {_last_words(error)}') from None


def _last_words(error: Exception) -> str:
  # A failing config file arrives as its whole traceback in the message; the cause is its last line,
  # but for absl's hint on help.
  lines = [line.strip() for line in str(error).splitlines()]
  lines = [line for line in lines if line and not line.startswith('Pass --help')]
  return lines[-1].strip('"') if lines else type(error).__name__


def _stop(message: str, status: int) -> None:
  print(f'error: {message}', file=sys.stderr)
  sys.exit(status)
