# SPDX-License-Identifier: Apache-2.0
"""Laws of the record: what it may hold, remember and be asked."""

import contextlib
import copy
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.base import leaf_name
from pe_jax.base import leaf_names
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import run_hooks
from pe_jax.testing._run import Tokens
from pe_jax.testing._subject import Subject


def _eager(subject: Subject, tokens: Tokens) -> dict:
  """Calls all hooks as they are, not under a jit of the kit's own."""
  tokens = jax.tree.map(jnp.asarray, tokens)
  out = run_hooks(subject.params, tokens, encoding=subject.encoding)
  if subject.encoding.place is not None:
    out['place'], _ = subject.place_eagerly(tokens)
  return jax.tree.map(lambda array: np.asarray(array, np.float64), out)


def law_pure(subject: Subject):
  """No hook remembers: other calls before it change nothing"""
  # Traced first, as caches keep tracers; then in half precision, as caches that are filled in
  # float32 hide their rounding.
  halved = subject.tokens(dtype=jnp.bfloat16)
  jax.eval_shape(lambda: run_hooks(subject.params, halved, encoding=subject.encoding))
  first = _eager(subject, halved)
  _eager(subject, subject.tokens())
  for made in _variants(subject):
    with contextlib.suppress(Exception):  # an option that crashes is for the law of options
      _fingerprint(subject, made)
  longer = np.concatenate([subject.positions, subject.positions * 3 + 5], axis=1)
  grown = subject.tokens(np.minimum(longer, subject.limit - 1))
  _eager(subject, grown._replace(length=grown.length * 7))
  again = _eager(subject, halved)
  for (path, before), after in zip(
      jax.tree_util.tree_flatten_with_path(first)[0], jax.tree.leaves(again)
  ):
    if not np.array_equal(before, after, equal_nan=True):
      raise Violation(
          f'{path[0].key} of the same arguments changed after calls in float32, with other '
          'options and lengths: it reads or writes something that is not an argument',
          dtype='bfloat16',
      )


def law_equal(subject: Subject):
  """Two records of one call are equal, hash alike and print alike"""
  one, two = subject.factory(), subject.factory()
  if one != two:
    raise Violation(
        f'{one!r} made twice is not equal: hooks must be module-level functions or pe_jax.bind of '
        'one, no closures or lambdas',
    )
  if hash(one) != hash(two) or repr(one) != repr(two):
    raise Violation(f'equal records hash or print differently: {one!r}, {two!r}')


def law_picklable(subject: Subject):
  """A record survives pickle and deepcopy"""
  record = subject.encoding
  try:
    again = pickle.loads(pickle.dumps(record))
  except Exception as error:
    raise Violation(f'pickle fails: {type(error).__name__}: {error}') from None
  if again != record or copy.deepcopy(record) != record:
    raise Violation(f'the copy of {record!r} is not equal to it')


def law_no_retrace(subject: Subject):
  """Equal records and new values do not compile again"""
  traces = []

  def count(params, tokens, *, encoding):
    traces.append(encoding)
    return run_hooks(params, tokens, encoding=encoding)

  counted = jax.jit(count, static_argnames='encoding')
  tokens = subject.tokens()
  moved = subject.tokens(np.minimum(subject.positions + 1, subject.limit - 1), seed=5)
  for call in (
      lambda: counted(subject.params, tokens, encoding=subject.factory()),
      lambda: counted(subject.params, moved, encoding=subject.factory()),
  ):
    call()
    if len(traces) > 1:
      raise Violation('a record made again, or new values, traced the hooks again')


def law_one_site(subject: Subject):
  """It acts on the embedding or in attention; only a composition acts on both"""
  encoding = subject.encoding
  parts = encoding.parts or (encoding,)
  both = {'the embedding': lambda e: e.embed is not None, 'attention': lambda e: e.in_attention}
  for site, acts in both.items():
    if acts(encoding) and not any(acts(part) for part in parts):
      raise Violation(f'it acts on {site}, but none of its parts does')
  if not encoding.parts and all(acts(encoding) for acts in both.values()):
    raise Violation('it acts at two sites: make two encodings and compose them')


def law_constants(subject: Subject):
  """Constants are not trained, and read head sizes only"""
  encoding, dims = subject.encoding, subject.dims
  constants = encoding.constants(dims)
  trained = encoding.init(jax.random.key(0), dims)
  both = leaf_names(constants) & leaf_names(trained)
  if both:
    raise Violation(f'{sorted(both)} are constants and trained at once')
  for path, leaf in jax.tree_util.tree_flatten_with_path(trained)[0]:
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
      raise Violation(
          f'init returns {leaf_name(path)} of dtype {leaf.dtype}, which cannot be '
          'trained: return it from constants'
      )
  wide = Dims(dims.model * 2, dims.heads, dims.kv_heads, dims.head_dim)
  same = jax.tree.map(lambda a, b: np.array_equal(a, b), constants, encoding.constants(wide))
  if not jax.tree.all(same):
    raise Violation('constants change with the width of the model', model=wide.model)


def law_init(subject: Subject):
  """`init` is a function of key and sizes, and vmaps over keys"""
  init, dims = subject.encoding.init, subject.dims
  one, two = (init(jax.random.key(7), dims) for _ in range(2))
  if not jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, two)):
    raise Violation('two calls with the same key differ')
  stacked = jax.eval_shape(
      jax.vmap(lambda key: init(key, dims)), jax.random.split(jax.random.key(0), 3)
  )
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(stacked)):
    if b.shape != (3, *a.shape):
      raise Violation(f'init under vmap over 3 keys turns shape {a.shape} into {b.shape}')


# --- Options -------------------------------------------------------------------------------------


def law_options(subject: Subject) -> str:
  """An option that is given changes the output"""
  alternatives, untried = _alternatives(subject)
  if not alternatives:
    reason = f'give options={{...}} for {", ".join(untried)}' if untried else 'it has no options'
    raise NotApplicable(reason)
  for name, values in alternatives.items():
    for value in values:
      if not _changes(subject, name, value, alternatives):
        raise Violation(
            f'{name}={value!r} changes nothing: not the arrays, nor what a hook returns',
            **{name: value},
        )
  return f'not tried: {", ".join(untried)}' if untried else ''


def _changes(subject: Subject, name: str, value: Any, alternatives: dict[str, list]) -> bool:
  """Whether the option matters, by itself or beside another option that is given."""
  settings = [{}] + [{other: v[0]} for other, v in alternatives.items() if other != name]
  for setting in settings:
    try:
      before, after = subject.factory(**setting), subject.factory(**setting, **{name: value})
    except ValueError:
      continue
    if before != after and _differ(_fingerprint(subject, before), _fingerprint(subject, after)):
      return True
  return False


def _fingerprint(subject: Subject, encoding: Encoding) -> list:
  """Everything that can be seen of an encoding: its arrays, and what its hooks return."""
  own = Subject(factory=lambda: encoding, dims=subject.dims, axes=subject.axes, size=subject.size)
  tokens = subject.tokens()
  own_row = own.place(subject.x, tokens.positions)[0]
  tokens = tokens._replace(q_coords=own_row, k_coords=own_row)
  arrays = (encoding.init(jax.random.key(0), subject.dims), own.params)
  return jax.tree.leaves((arrays, _eager(own, tokens)))


def _differ(one: list, two: list) -> bool:
  if [np.shape(a) for a in one] != [np.shape(b) for b in two]:
    return True
  return any(not np.allclose(a, b, 1e-6, 1e-6, equal_nan=True) for a, b in zip(one, two))


def _variants(subject: Subject) -> list[Encoding]:
  alternatives, _ = _alternatives(subject)
  return [subject.factory(**{name: v}) for name, values in alternatives.items() for v in values]


def _alternatives(subject: Subject) -> tuple[dict[str, list], list[str]]:
  """Finds other values for every option, and the options for which there is none."""
  found, untried = dict.fromkeys(subject.options), []
  for name, values in subject.options.items():
    found[name] = list(values) if isinstance(values, (list, tuple)) else [values]
  for name, option in inspect.signature(subject.factory).parameters.items():
    if name in found or option.kind in (option.VAR_KEYWORD, option.VAR_POSITIONAL):
      continue
    working = [value for value in _others(option.default) if _works(subject, name, value)]
    if working:
      found[name] = working[:1]
    else:
      untried.append(name)
  return found, untried


def _others(value: Any) -> list:
  if isinstance(value, bool):
    return [not value]
  if isinstance(value, int):
    return [2 * value, value // 2, value + 1, value - 1] if value else [1]
  if isinstance(value, float):
    return [2 * value, value / 2] if value else [1.0]
  return []


def _works(subject: Subject, name: str, value: Any) -> bool:
  try:
    made = subject.factory(**{name: value})
    made.constants(subject.dims)
  except ValueError:
    return False
  return made.max_length is None or made.max_length > subject.positions.max()
