# SPDX-License-Identifier: Apache-2.0
"""Encodings as they are typed: `rope(base=5e5); compose(rope(), alibi()); mine.py:gated(width=32)`.

The text is read with ast and never evaluated: literals, the factories of pe_jax, its `scaling` and
`positions`, and functions of files of your own, which may stand alone: `mine.py:gated`. What was
typed is the name in every table.
"""

import ast
from collections.abc import Callable
import hashlib
import inspect
import pathlib
import re
import traceback
import types
import typing
from typing import Any

from experiments import errors
import pe_jax
from pe_jax._load import load

_NAMESPACES = ('scaling', 'positions')
_FILE = re.compile(r'([^\s(),;=\'"]+\.py):(\w+)')
_HINT = "write encodings as in Python, separated by ';': --encodings='rope(base=5e5); alibi()'"


def encodings(text: str) -> dict[str, pe_jax.Encoding]:
  """Reads a list of encodings, keyed by what was typed.

  Raises:
    UserError: no encoding, one that cannot be read or made, or two that are equal.
  """
  found = {}
  for typed in filter(None, (part.strip() for part in text.split(';'))):
    made = encoding(typed)
    for other, earlier in found.items():
      if earlier == made:
        raise errors.UserError(
            f'{other!r} and {typed!r} are the same encoding, {made!r}: list it once'
        )
    found[typed] = made
  if not found:
    raise errors.UserError(f'no encodings were given: {_HINT}')
  return found


def encoding(typed: str) -> pe_jax.Encoding:
  """Reads one encoding."""
  # `mine.py:gated` is no Python name, so it is replaced by one before the text is parsed.
  files = {}

  def rename(match: re.Match) -> str:
    name = f'_file{len(files)}'
    files[name] = match.groups()
    return name

  try:
    tree = ast.parse(_FILE.sub(rename, typed), mode='eval').body
  except SyntaxError as error:
    raise errors.UserError(f'{typed!r} cannot be read ({error.msg}): {_HINT}') from None
  reader = _Reader(typed, files)
  made = reader.value(tree)
  if callable(made) and isinstance(tree, ast.Name) and tree.id in files:  # mine.py:gated
    made = reader.value(ast.Call(tree, [], []))
  if not isinstance(made, pe_jax.Encoding):
    hint = f'; write {typed}(...)' if callable(made) else ''
    raise errors.UserError(
        f'{typed!r} is a {type(made).__name__}, not an encoding{hint}. Factories:'
        f' {", ".join(sorted(_factories()))}'
    )
  return made


def source_files(text: str) -> dict[str, str]:
  """Returns the hash of each file of the user's that `text` names, by path as typed."""
  return {
      path: hashlib.sha256(pathlib.Path(path).expanduser().read_bytes()).hexdigest()
      for path in sorted({path for path, _ in _FILE.findall(text)})
  }


def where(error: BaseException, text: str) -> str:
  """Returns ' (mine.py, line 7)' for an error that arose under a file of the user's in `text`."""
  files = {str(pathlib.Path(path).expanduser().resolve()) for path, _ in _FILE.findall(text)}
  frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
  return f' ({frames[-1].filename}, line {frames[-1].lineno})' if frames else ''


class _Reader:
  """Turns the syntax tree of one encoding into the value it stands for."""

  def __init__(self, typed: str, files: dict[str, tuple[str, str]]):
    self._typed = typed
    self._files = files

  def value(self, node: ast.expr) -> Any:
    match node:
      case ast.Call():
        return self._call(node)
      case ast.Name():
        return self._name(node.id)
      case ast.Attribute(value=ast.Name(id=namespace), attr=name):
        return self._member(namespace, name)
      case ast.Tuple(elts=items) | ast.List(elts=items):
        return tuple(self.value(item) for item in items)
    try:
      return ast.literal_eval(node)
    except (TypeError, ValueError):
      self._fail(
          f'{ast.unparse(node)!r} is neither a literal nor a call: use numbers, strings, tuples,'
          ' None, True, False and calls of factories'
      )

  def _call(self, node: ast.Call) -> Any:
    function = self.value(node.func)
    name = ast.unparse(node.func)
    if name in self._files:
      name = ':'.join(self._files[name])
    if not callable(function):
      self._fail(f'{name} is no function')
    if any(keyword.arg is None for keyword in node.keywords):
      self._fail(f'{name}(**...) is not read: write its arguments out')
    args = [self.value(arg) for arg in node.args]
    keywords = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
    _check_arguments(self._fail, name, function, args, keywords)
    try:
      return function(*args, **keywords)
    except (TypeError, ValueError) as error:
      self._fail(f'{error}{where(error, self._typed)}')
    except (Exception, SystemExit) as error:  # a factory of the user's may raise anything
      self._fail(f'{name} raised {type(error).__name__}: {error}{where(error, self._typed)}')

  def _name(self, name: str) -> Any:
    if name in self._files:
      return _from_file(*self._files[name])
    known = _factories()
    if name in known:
      return known[name]
    if name == 'bind':
      return pe_jax.bind
    self._fail(
        f'there is no encoding {name!r}. Factories: {errors.closest_first(name, known)}. One of'
        f' your own is written FILE.py:{name}(...)'
    )

  def _member(self, namespace: str, name: str) -> Any:
    if namespace not in _NAMESPACES:
      self._fail(
          f'{namespace!r} is unknown: names before a dot are'
          f' {errors.closest_first(namespace, _NAMESPACES)}'
      )
    members = _public(getattr(pe_jax, namespace))
    if name not in members:
      self._fail(
          f'{namespace} has no {name!r}. It has {errors.closest_first(name, members)}'
      )
    return members[name]

  def _fail(self, message: str) -> typing.NoReturn:
    raise errors.UserError(f'in the encoding {self._typed!r}: {message}') from None


def _check_arguments(
    fail: Callable[[str], typing.NoReturn],
    name: str,
    function: Callable,
    args: list,
    keywords: dict[str, Any],
) -> None:
  """Fails where the function does not take these arguments, listing those it takes."""
  parameters = inspect.signature(function).parameters
  open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
  for keyword in keywords:
    if keyword not in parameters and not open_ended:
      fail(
          f'{name} takes no argument {keyword!r}. Its arguments:'
          f' {errors.closest_first(keyword, parameters)}'
      )
  try:
    inspect.signature(function).bind(*args, **keywords)
  except TypeError as error:
    fail(f'{name}: {error}. It is called as {name}{_signature(function)}')


def _signature(function: Callable) -> str:
  signature = inspect.signature(function)
  bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
  return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _factories() -> dict[str, Callable]:
  """The functions of pe_jax that return an encoding, by name."""
  return {
      name: function
      for name, function in _public(pe_jax).items()
      if inspect.signature(function).return_annotation in (pe_jax.Encoding, 'Encoding')
  }


def _public(module: types.ModuleType) -> dict[str, Callable]:
  """The functions that a module offers; what it imports for its own use is left out."""
  offered = getattr(module, '__all__', None)
  return {
      name: member
      for name, member in vars(module).items()
      if callable(member)
      and not inspect.isclass(member)
      and (name in offered if offered else _is_own(module, name, member))
  }


def _is_own(module: types.ModuleType, name: str, member: Any) -> bool:
  home = getattr(member, '__module__', None) or ''
  return not name.startswith('_') and f'{home}.'.startswith(f'{module.__name__}.')


# --- Files of the user's -------------------------------------------------------------------------


def _from_file(path: str, name: str) -> Any:
  module = _load(path)
  if not hasattr(module, name):
    raise errors.UserError(
        f'{path} has no {name!r}. Its functions: {errors.closest_first(name, _public(module))}'
    )
  return getattr(module, name)


def _load(path: str) -> types.ModuleType:
  if not pathlib.Path(path).expanduser().is_file():
    raise errors.UserError(f'there is no file {path}: give its path from here, or from /')
  try:
    return load(path)
  except (Exception, SystemExit) as error:
    line = where(error, f'{path}:file')
    raise errors.UserError(
        f'{path} failed to import: {type(error).__name__}: {error}{line}; mend the file'
    ) from error
