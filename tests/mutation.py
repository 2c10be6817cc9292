# SPDX-License-Identifier: Apache-2.0
"""Breaks the encodings one node at a time and counts how many faults the laws alone find.

  python -m tests.mutation [FILE ...] [--sample=N --seed=S] [--without-references]

A mutant is one file of pe_jax with one changed node, see `tests.changes`. It is killed if it fails
to import or breaks a law of `pe_jax.testing` on one of `tests.subjects`, by what it returns or by
an error. Files are sampled each by itself. The result of a run is in survivors.md.
"""

import argparse
import collections
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import importlib.abc
import importlib.util
import os
import pathlib
import random
import resource
import sys
import tempfile

import jax

from tests import conftest
from tests.changes import Mutant
from tests.changes import mutants

importlib.import_module('pytest')  # once, not in every fork
ROOT = pathlib.Path(conftest.__file__).parent.parent  # and with it the settings of all tests
SECONDS = 120  # of CPU time, after which a mutant counts as endless
# Laws that find most, and laws that take long; the others stand between them.
_FIRST = ('reference', 'place_reference')
_LAST = ('pure', 'gradients_finite', 'packing', 'empty_gradients', 'sharded', 'grouped', 'decode')

# --- Judging them --------------------------------------------------------------------------------


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
  """Imports the source of a mutant in place of its module."""

  def __init__(self, mutant: Mutant):
    self._mutant = mutant

  def find_spec(self, fullname, path, target=None):
    del path, target
    is_broken = fullname == self._mutant.module
    return importlib.util.spec_from_loader(fullname, self) if is_broken else None

  def get_source(self, fullname):
    del fullname
    return self._mutant.source


def judge(mutant: Mutant, laws: tuple[str, ...] = (), references: bool = True) -> str:
  """Returns what kills a mutant, '' if nothing does.

  It forks, so this process must not have used jax, nor imported pe_jax.

  Args:
    mutant: what to judge.
    laws: names of the laws to hold it to; all of them unless given.
    references: whether the laws get float64 references.

  Returns:
    The name of a law, 'import', or 'endless'.
  """
  reader, writer = os.pipe()
  child = os.fork()
  if not child:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    os.close(reader)
    os.write(writer, (_judge_here(mutant, laws, references) or 'survived').encode())
    os._exit(0)
  os.close(writer)
  with os.fdopen(reader) as pipe:
    verdict = pipe.read() or 'endless'
  os.waitpid(child, 0)
  return '' if verdict == 'survived' else verdict


def _judge_here(mutant: Mutant, laws: tuple[str, ...], references: bool) -> str:
  sys.meta_path.insert(0, _Finder(mutant))
  try:
    from pe_jax.testing import LAWS
    from tests import subjects

    held = subjects.subjects(mutant.module, references)
  except Exception:
    return 'import'
  order = {name: place for place, name in enumerate((*_FIRST, '', *_LAST))}
  named = {law.__name__.removeprefix('law_'): law for law in LAWS}
  for name in laws or sorted(named, key=lambda name: order.get(name, order[''])):
    for subject in held:
      if broken := _broken(named[name], subject):
        return f'{name}{broken}'
  return ''


def _broken(law: Callable, subject) -> str:
  from pe_jax.testing._compare import NotApplicable
  from pe_jax.testing._compare import Violation

  try:
    _ = subject.params  # made here, as a law may first ask for them under a trace
    law(subject)
  except NotApplicable:
    return ''
  except Violation:
    return ' broken'
  except Exception:
    return ' raises'
  return ''


# --- Reporting -----------------------------------------------------------------------------------


def main(argv: list[str] | None = None):
  """Judges every mutant, or a sample of each file, and prints verdicts and counts."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('files', nargs='*', type=pathlib.Path, help='all of encodings/ by default')
  parser.add_argument('--sample', type=int, help='how many mutants of each file')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--without-references', action='store_true')
  given = parser.parse_args(argv)
  counts = collections.defaultdict(collections.Counter)
  with cached():
    for file in given.files or sorted((ROOT / 'pe_jax' / 'encodings').glob('_[a-z]*.py')):
      for mutant in _chosen(file.resolve(), given.sample, given.seed):
        verdict = judge(mutant, references=not given.without_references)
        print(f'{verdict or "SURVIVED":>24}  {mutant}', flush=True)
        for group in (file.name, mutant.kind, 'all'):
          counts[group][bool(verdict)] += 1
  for group, count in counts.items():
    share = count[True] / count.total()
    print(f'{group:>24}  {count[True]} of {count.total()} killed, {share:.1%}')


@contextlib.contextmanager
def cached() -> Iterator[None]:
  """Makes compilation, most of the time, cheap, and shares it among mutants."""
  with tempfile.TemporaryDirectory() as folder:
    for name, value in {
        'disable_most_optimizations': True,
        'compilation_cache_dir': folder,
        'persistent_cache_min_compile_time_secs': 0,
        'persistent_cache_min_entry_size_bytes': -1,
    }.items():
      jax.config.update(f'jax_{name}', value)
    yield


def mutants_of(file: pathlib.Path) -> list[Mutant]:
  """Returns the file as it is, named `none`, and all its mutants."""
  module, source = '.'.join(file.relative_to(ROOT).with_suffix('').parts), file.read_text()
  return [Mutant(module, 1, 1, 'none', '', '', source), *mutants(module, source)]


def _chosen(file: pathlib.Path, sample: int | None, seed: int) -> list[Mutant]:
  """Returns mutants of a file, which must keep all laws as it is."""
  whole, *found = mutants_of(file)
  if broken := judge(whole):
    raise SystemExit(f'{file.name} is no place to start from: {broken}.')
  random.Random(seed).shuffle(found)
  return found[:sample]


if __name__ == '__main__':
  main()
