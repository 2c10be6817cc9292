# SPDX-License-Identifier: Apache-2.0
"""The source that numbers depend on, so that kept ones are known from stale ones."""

import hashlib
import pathlib
import types

import pe_jax


def digest(*modules: types.ModuleType) -> str:
  """Hashes the library, its conformance kit left out, and the modules given."""
  root = pathlib.Path(pe_jax.__file__).parent
  library = [path for path in sorted(root.rglob('*.py')) if root / 'testing' not in path.parents]
  own = [pathlib.Path(module.__file__) for module in modules]
  found = hashlib.sha256()
  for path in library + own:
    found.update(path.name.encode() + b'\0' + path.read_bytes())
  return found.hexdigest()
