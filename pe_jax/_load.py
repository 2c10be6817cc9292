# SPDX-License-Identifier: Apache-2.0
"""Files of the user's own, imported by path."""

import hashlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import types


def load(path: str | pathlib.Path) -> types.ModuleType:
  """Imports a Python file once, whatever it is called by.

  The module stands in `sys.modules` under a name that depends on the absolute path alone. So its
  functions are the same objects however often it is loaded, records made of them are equal, and
  they pickle into another process that has loaded the file.

  Args:
    path: the file.

  Returns:
    The module.

  Raises:
    FileNotFoundError: there is no such file. What the file itself raises passes through, and a
      later call tries again.
  """
  file = pathlib.Path(path).expanduser().resolve()
  name = f'pe_jax_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}'
  if name in sys.modules:
    return sys.modules[name]
  if not file.is_file():
    raise FileNotFoundError(f'there is no file {path} (looked for {file}).')
  spec = importlib.util.spec_from_loader(
      name, importlib.machinery.SourceFileLoader(name, str(file))
  )
  module = sys.modules[name] = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module
