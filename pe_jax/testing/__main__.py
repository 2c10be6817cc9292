# SPDX-License-Identifier: Apache-2.0
"""Checks an encoding in a file of one's own: `python -m pe_jax.testing FILE.py:factory`."""

import argparse
from collections.abc import Callable
import os
import pathlib
import sys
import traceback

# Before jax starts: the law of sharding needs eight devices, and a CPU can pretend.
os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')

from pe_jax import Dims
from pe_jax import testing
from pe_jax._load import load


def main(argv: list[str] | None = None) -> int:
  """Prints the table; returns 0 where every law holds, 1 where one fails, 2 for a wrong call."""
  parser = argparse.ArgumentParser(
      prog='python -m pe_jax.testing', description='Holds an encoding to every law of pe_jax.'
  )
  parser.add_argument(
      'factory', metavar='FILE.py:factory', help='a function without required arguments'
  )
  parser.add_argument('--model', type=int, default=64, help='width of the hidden state')
  parser.add_argument('--heads', type=int, default=4, help='query heads')
  parser.add_argument('--kv-heads', type=int, default=2, help='key and value heads')
  parser.add_argument('--head-dim', type=int, default=16, help='width of a head')
  parser.add_argument(
      '--law', action='append', metavar='NAME', help='only this law; may be repeated'
  )
  given = parser.parse_args(argv)
  try:
    dims = Dims(given.model, given.heads, given.kv_heads, given.head_dim)
    report = _report(_factory(given.factory), dims, given.law)
  except ValueError as error:
    print(f'pe_jax.testing: {error}', file=sys.stderr)
    return 2
  print(report.table(colour=sys.stdout.isatty()))
  return 0 if report.ok else 1


def _report(factory: Callable, dims: Dims, laws: list[str] | None) -> testing.Report:
  try:
    return testing.check(factory, dims, laws=laws)
  except testing.ConformanceError as error:
    return error.report
  except ValueError:
    raise
  except (Exception, SystemExit) as error:
    raise ValueError(f'the factory raised {_tell(error)}') from error


def _factory(text: str) -> Callable:
  """Finds the factory that FILE.py:factory names, or FILE.py:factory() as experiments spell it."""
  path, colon, name = text.removesuffix('()').rpartition(':')
  if not colon or not path or not name:
    raise ValueError(f'{text!r} is not FILE.py:factory, such as mine.py:gated.')
  try:
    module = load(path)
  except FileNotFoundError as error:
    raise ValueError(str(error)) from None
  except (Exception, SystemExit) as error:
    raise ValueError(f'{path} failed to import: {_tell(error)}') from None
  made = getattr(module, name, None)
  if not callable(made):
    own = [key for key, member in vars(module).items() if _is_own(module, member)]
    raise ValueError(f'{path} has no function {name!r}: it has {own}.')
  return made


def _is_own(module, member) -> bool:
  return callable(member) and getattr(member, '__module__', None) == module.__name__


def _tell(error: BaseException) -> str:
  """Says what was raised, and in which line."""
  if isinstance(error, SyntaxError):
    return f'{type(error).__name__}: {error}'
  last = traceback.extract_tb(error.__traceback__)[-1]
  return f'{type(error).__name__}: {error} ({pathlib.Path(last.filename).name}, line {last.lineno})'


if __name__ == '__main__':
  sys.exit(main())
