# SPDX-License-Identifier: Apache-2.0
"""Runs every law on an encoding, and makes what fails small."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import contextlib
import dataclasses
import inspect
import pathlib
import sysconfig
import traceback
from typing import Any

import jax

from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.testing import _claims as claims
from pe_jax.testing import _decode as decode
from pe_jax.testing import _gradients as gradients
from pe_jax.testing import _hooks as hooks
from pe_jax.testing import _kernel as kernels
from pe_jax.testing import _layer as layer
from pe_jax.testing import _precision as precision
from pe_jax.testing import _program as program
from pe_jax.testing import _record as record
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import Violation
from pe_jax.testing._report import ConformanceError
from pe_jax.testing._report import FAILED
from pe_jax.testing._report import Finding
from pe_jax.testing._report import NOT_APPLICABLE
from pe_jax.testing._report import PASSED
from pe_jax.testing._report import Report
from pe_jax.testing._subject import Subject

Law = Callable[[Subject], str | None]  # what it returns is a note for the table

# In the order of the contract, but for purity: whatever runs first could fill a cache.
LAWS: tuple[Law, ...] = (
    record.law_pure,
    # 1. Positions are data.
    hooks.law_token_local,
    hooks.law_per_row,
    hooks.law_float_positions,
    hooks.law_jit,
    hooks.law_vmap,
    # 2. Biases are pairwise.
    hooks.law_tiles,
    hooks.law_rows,
    hooks.law_heads,
    hooks.law_scale,
    hooks.law_value_linear,
    layer.law_grouped,
    program.law_sharded,
    # 3. Queries and keys are token-local, so they can be cached.
    decode.law_decode,
    decode.law_place_prefix,
    decode.law_place_segments,
    # 4. Precision.
    hooks.law_shapes,
    precision.law_half_precision,
    precision.law_reference,
    precision.law_place_reference,
    precision.law_far,
    # 5. Masks come from order and segments.
    layer.law_causal,
    layer.law_mask_order,
    layer.law_packing,
    layer.law_padding,
    layer.law_hidden,
    layer.law_empty_rows,
    layer.law_constant_value,
    kernels.law_kernel,
    # 6. One site.
    record.law_one_site,
    # 8. Tables end, and constants are constant.
    claims.law_max_length,
    record.law_constants,
    record.law_init,
    program.law_no_constants,
    # 9. Gradients.
    gradients.law_gradients_finite,
    gradients.law_gradients_reach,
    gradients.law_empty_gradients,
    # 10. Options, equality, resolution.
    record.law_options,
    record.law_equal,
    record.law_picklable,
    record.law_no_retrace,
    precision.law_told_apart,
    # Claims.
    claims.law_relative,
    claims.law_absolute,
    claims.law_causal_only,
    claims.law_length,
    claims.law_reads_content,
    claims.law_by_distance,
    claims.law_permutation,
)

_SMALL = (1, 2, 4)  # numbers of tokens to try once a law fails
_LEAST_LENGTH = 16
_HOOKS = ('embed', 'place', 'query', 'key', 'bias', 'logits', 'value')


def check(
    factory: Callable[..., Encoding],
    dims: Dims,
    reference: dict[str, Callable] | None = None,
    *,
    options: dict[str, Any] | None = None,
    kernel: Callable | None = None,
    axes: int | None = None,
    laws: Collection[str] | None = None,
) -> Report:
  """Holds an encoding to every law of the contract.

  Args:
    factory: makes the encoding, without required arguments; `functools.partial` fixes some.
    dims: sizes of the model. With fewer kv_heads than heads, grouped heads are checked.
    reference: float64 numpy functions of the arguments of the hooks, by name of the hook; `place`
      returns coordinates only.
    options: other values to try for options of the factory, by name: one, or a list of them.
      Without them numbers are scaled and booleans flipped.
    kernel: what `pe_jax.attend` computes with.
    axes: how many arrays the positions are, for encodings that take a tuple of them.
    laws: names of the laws to hold it to; all of them unless given.

  Returns:
    The report; printed, it is a table.

  Raises:
    ConformanceError: a law is broken. The message says which, what was seen, and for which input.
    ValueError: the factory makes no encoding, or one with too short a table to check; or there is
      no such law, option or hook.

  >>> import pe_jax
  >>> dims = pe_jax.Dims(model=16, heads=2)
  >>> print(check(pe_jax.alibi, dims, laws=('equal', 'reads_content')))
  alibi()
    ok   equal              Two records of one call are equal, hash alike and print alike
    ok   reads_content      `reads_content`: `bias` or `logits` reads q or k, and only then
  alibi(): 2 passed, 0 failed, 0 not applicable
  """
  subject = Subject(
      factory=factory,
      dims=dims,
      options=options or {},
      reference=reference or {},
      kernel=kernel,
      axes=axes,
  )
  _check_subject(subject)
  chosen = _choose(laws)
  with _strict():
    report = Report(repr(subject.encoding), _findings(subject, chosen))
  if not report.ok:
    raise ConformanceError(report)
  return report


def _check_subject(subject: Subject):
  _check_calls(subject)
  if not isinstance(subject.encoding, Encoding):
    raise ValueError(
        f'the factory returned {subject.encoding!r}: it must return a pe_jax.Encoding.'
    )
  if subject.limit < _LEAST_LENGTH:
    raise ValueError(
        f'{subject.encoding!r} holds {subject.limit} positions: the laws need {_LEAST_LENGTH}, so '
        'pass functools.partial(factory, ...) with a longer table.'
    )
  for hook in subject.reference:
    if hook not in _HOOKS:
      raise ValueError(f'the reference has no hook {hook!r} to compare: hooks are {list(_HOOKS)}.')


def _check_calls(subject: Subject):
  """Raises a ValueError where the factory cannot be called as the laws call it."""
  name = getattr(subject.factory, '__name__', repr(subject.factory))
  parameters = inspect.signature(subject.factory).parameters
  variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
  needed = [
      key
      for key, option in parameters.items()
      if option.default is option.empty and option.kind not in variadic
  ]
  if needed:
    raise ValueError(
        f'{name} needs {", ".join(needed)}: give defaults, or pass functools.partial({name}, ...).'
    )
  for option in subject.options:
    if option not in parameters:
      raise ValueError(f'{name} has no option {option!r}: it takes {list(parameters)}.')


@contextlib.contextmanager
def _strict() -> Iterator[None]:
  """Forbids silent broadcasting and rounding; programs run once, so they are hardly optimized."""
  optimize = 'jax_disable_most_optimizations'
  before = jax.config.read(optimize)
  jax.config.update(optimize, True)
  try:
    with (
        jax.numpy_rank_promotion('raise'),
        jax.debug_nans(False),
        jax.default_matmul_precision('highest'),
    ):
      yield
  finally:
    jax.config.update(optimize, before)


def _choose(names: Collection[str] | None) -> tuple[Law, ...]:
  if names is None:
    return LAWS
  known = {_title(law)[0]: law for law in LAWS}
  if unknown := sorted(set(names) - known.keys()):
    raise ValueError(f'there are no laws {unknown}: there are {list(known)}.')
  return tuple(law for name, law in known.items() if name in names)


def _findings(subject: Subject, laws: tuple[Law, ...]) -> tuple[Finding, ...]:
  try:
    _ = subject.params  # made here, as a law may ask for them first under a trace
  except Exception as error:
    return _without_arrays(error, laws)
  return tuple(_judge(law, subject) for law in laws)


def _without_arrays(error: Exception, laws: tuple[Law, ...]) -> tuple[Finding, ...]:
  """Blames the law of `init` alone where init or constants raise."""
  return tuple(
      Finding(*_title(law), FAILED, _message(error))
      if law is record.law_init
      else Finding(*_title(law), NOT_APPLICABLE, 'its arrays cannot be made')
      for law in {record.law_init: None, **dict.fromkeys(laws)}
  )


def _title(law: Law) -> tuple[str, str]:
  return law.__name__.removeprefix('law_'), law.__doc__.splitlines()[0]


def _judge(law: Law, subject: Subject) -> Finding:
  name, sentence = _title(law)
  error = _run(law, subject)
  if not isinstance(error, Exception):
    return Finding(name, sentence, PASSED, error or '')
  if isinstance(error, NotApplicable):
    return Finding(name, sentence, NOT_APPLICABLE, str(error))
  error, size = _shrink(law, subject, error)
  return Finding(name, sentence, FAILED, _message(error), _input(error, size))


def _run(law: Law, subject: Subject) -> Exception | str | None:
  try:
    return law(subject)
  except Exception as error:  # an encoding may raise anything, and that breaks the law as well
    return error


def _shrink(law: Law, subject: Subject, error: Exception) -> tuple[Exception, int]:
  """Finds the fewest tokens with which the law fails in the same way."""
  for size in _SMALL:
    with_fewer = dataclasses.replace(subject, size=size)
    vars(with_fewer).update(params=subject.params)  # as made above
    smaller = _run(law, with_fewer)
    if type(smaller) is type(error):
      return smaller, size
  return error, subject.size


def _message(error: Exception) -> str:
  if isinstance(error, Violation):
    return str(error)
  text = str(error).splitlines()[0] if str(error) else ''
  frames = traceback.extract_tb(error.__traceback__)
  own = [frame for frame in frames if not _is_foreign(frame.filename)]
  last = (own or frames)[-1]
  return f'{type(error).__name__}: {text} ({pathlib.Path(last.filename).name}, line {last.lineno})'


def _is_foreign(filename: str) -> bool:
  """Whether a line is of Python, of jax or of the kit, not of the encoding."""
  kit, python = pathlib.Path(__file__).parent, sysconfig.get_path('stdlib')
  return 'site-packages' in filename or filename.startswith((str(kit), python))


def _input(error: Exception, size: int) -> str:
  given = {'tokens': size, **getattr(error, 'input', {})}
  return ', '.join(f'{name}={value}' for name, value in given.items())
