# SPDX-License-Identifier: Apache-2.0
"""Every way to change one node of a file: another sign, an off by one, swapped arguments, a dtype.

What only raises errors, documents, annotates or decorates is left as it is.
"""

import ast
from collections.abc import Iterator
import dataclasses
import functools
import os

_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_FUNCTIONS = {
    'sin': 'cos',
    'cos': 'sin',
    'min': 'max',
    'max': 'min',
    'minimum': 'maximum',
    'maximum': 'minimum',
    'floor': 'ceil',
    'zeros': 'ones',
    'zeros_like': 'ones_like',
}
_DTYPES = {'float32': 'bfloat16', 'float64': 'float32', 'int32': 'int8'}
# Calls that may be forgotten: what is left is their first argument, or the array of a method.
_FORGETTABLE = frozenset(
    'abs asarray astype broadcast_to clip cumsum expand flip floor log_sigmoid moveaxis '
    'optimization_barrier pad reshape round sigmoid'.split()
)
_LIBRARIES = ('jax', 'jnp', 'np')
_CONTEXT = 30  # characters shown before and after a change


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One file with one changed node.

  Attributes:
    module: dotted name of the module.
    line, column: where the node stands.
    kind: of the change.
    before, after: the node as it was and as it is.
    source: the whole file, changed.
  """

  module: str
  line: int
  column: int
  kind: str
  before: str
  after: str
  source: str = dataclasses.field(repr=False)

  def __str__(self):
    name = self.module.rpartition('.')[-1]
    return f'{name}.py:{self.line}:{self.column} {self.kind}: {self.before} -> {self.after}'


def mutants(module: str, source: str) -> list[Mutant]:
  """Makes every mutant of a file, in the order of the text."""
  tree = ast.parse(source)
  found = {}
  for parent, field, index in list(_sites(tree)):
    holder, key = (getattr(parent, field), index) if index is not None else (vars(parent), field)
    node = holder[key]
    seen = parent if isinstance(parent, ast.UnaryOp) else None  # the sign of -1 tells an axis
    before = ast.unparse(seen or node)
    for kind, changed in _changes(node, parent):
      holder[key] = changed
      text, after = ast.unparse(ast.fix_missing_locations(tree)), ast.unparse(seen or changed)
      place = (node.lineno, node.col_offset + 1)
      found.setdefault(text, Mutant(module, *place, kind, *_differ(before, after), text))
    holder[key] = node
  return list(found.values())


def _differ(before: str, after: str) -> tuple[str, str]:
  """Cuts what two texts share, but for the characters about the change."""
  start = max(0, len(os.path.commonprefix((before, after))) - _CONTEXT)
  end = len(os.path.commonprefix((before[:start:-1], after[:start:-1])))
  shown = (text[start : max(len(text) - end + _CONTEXT, start)] for text in (before, after))
  return tuple(' '.join(text.split()) for text in shown)


def _sites(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
  """Finds every expression and statement that may change, as a place in its parent."""
  for field, child in ast.iter_fields(node):
    if field in ('annotation', 'returns', 'decorator_list'):
      continue
    children = enumerate(child) if isinstance(child, list) else [(None, child)]
    for index, part in children:
      if not isinstance(part, ast.AST) or _is_guard(part):
        continue
      if hasattr(part, 'lineno'):
        yield node, field, index
      yield from _sites(part)


def _is_guard(node: ast.AST) -> bool:
  """Whether a node only raises, checks, or is text."""
  if isinstance(node, ast.If):
    return not node.orelse and all(isinstance(line, ast.Raise) for line in node.body)
  if isinstance(node, ast.Expr):
    value = node.value
    return isinstance(value, ast.Constant) or 'check' in ast.unparse(getattr(value, 'func', value))
  return isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Delete))


def _changes(node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
  """Makes the changed versions of one node, each with its kind."""
  copy = functools.partial(_replace, node)
  match node:
    case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _OPERATORS:
      yield 'operator', copy(op=_OPERATORS[type(op)]())
    case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
      yield 'comparison', copy(ops=[_OPERATORS[type(op)]()])
    case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
      yield 'sign', operand
    case ast.Constant(value=bool(value)):
      yield 'flag', copy(value=not value)
    case ast.Constant(value=int(value) | float(value)):
      axis = isinstance(parent, ast.UnaryOp) and value in (1, 2)
      yield 'axis' if axis else 'off by one', copy(value=value + 1)
      if isinstance(value, int) and value > 0:
        yield 'off by one', copy(value=value - 1)
    case ast.Attribute(attr=name) if name in _DTYPES:
      yield 'dtype', copy(attr=_DTYPES[name])
    case ast.IfExp(body=body, orelse=orelse):
      yield 'branch', body
      yield 'branch', orelse
    case ast.If(test=test) | ast.While(test=test):
      yield 'branch', copy(test=ast.UnaryOp(ast.Not(), test))
    case ast.Tuple(elts=[one, two, *rest], ctx=ast.Load()) | ast.List(elts=[one, two, *rest]):
      if isinstance(parent, ast.Call):
        yield 'swapped', copy(elts=[two, one, *rest])
    case ast.Call():
      yield from _call_changes(node)


def _call_changes(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
  copy = functools.partial(_replace, node)
  *owner, name = ast.unparse(node.func).split('.')
  if name in _FUNCTIONS:
    other = _FUNCTIONS[name]
    changed = '.'.join((*owner, other))
    yield 'function', copy(func=ast.parse(changed, mode='eval').body)
  if name in _FORGETTABLE:
    is_method = isinstance(node.func, ast.Attribute) and owner[0] not in _LIBRARIES
    yield 'forgotten', node.func.value if is_method else node.args[0]
  if name == 'where':
    yield 'branch', node.args[1]
    yield 'branch', node.args[2]
  if len(node.args) > 1 and name != 'isinstance' and not isinstance(node.args[1], ast.Starred):
    yield 'swapped', copy(args=[node.args[1], node.args[0], *node.args[2:]])
  if owner[:1] and owner[0] in _LIBRARIES or name == 'Encoding':
    for keyword in node.keywords:
      is_text = keyword.arg in ('name', 'reference')
      is_flag = isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)
      if not is_text and not is_flag:
        yield 'forgotten', copy(keywords=[k for k in node.keywords if k is not keyword])


def _replace(node: ast.AST, **fields) -> ast.AST:
  return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)
