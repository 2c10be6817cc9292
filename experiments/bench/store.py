# SPDX-License-Identifier: Apache-2.0
"""What was measured, kept by all that determines it: a run that is killed goes on where it stopped.

    DIR/measured/alibi-2048-forward-0123456789ab.json   {'identity': ..., 'value': ...}
"""

from collections.abc import Callable
import pathlib
import re
from typing import Any

from experiments import files
from experiments import results


class Store:
  """Measured values, in memory and, where there is a directory, in one file each."""

  def __init__(self, directory: pathlib.Path | None):
    self._directory = directory
    self._found: dict[str, Any] = {}

  def has(self, identity: dict[str, Any]) -> bool:
    """Whether `get` would only read."""
    path = self._path(identity)
    return results.digest(identity) in self._found or (path is not None and path.exists())

  def get(self, identity: dict[str, Any], measure: Callable[[], Any]) -> Any:
    """Returns what was measured for an identity; measures it, and keeps it, if nothing was."""
    key, path = results.digest(identity), self._path(identity)
    if key not in self._found:
      if path is not None and path.exists():
        self._found[key] = files.read_json(path)['value']
      else:
        self._found[key] = measure()
        if path is not None:
          files.write_json(path, {'identity': identity, 'value': self._found[key]})
    return self._found[key]

  def _path(self, identity: dict[str, Any]) -> pathlib.Path | None:
    if self._directory is None:
      return None
    words = '-'.join(str(word) for word in identity['name'])
    slug = re.sub(r'[^a-z0-9.]+', '-', words.lower()).strip('-')[:60]
    return self._directory / 'measured' / f'{slug}-{results.digest(identity)}.json'
