# SPDX-License-Identifier: Apache-2.0
"""How a law speaks: it raises `Violation` with what was seen, or `NotApplicable` with a reason."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import numpy as np

# What float32 arithmetic in another order may change, relative to the largest number.
ROUNDING = 2e-5
# What the angle of position p may be off by, in radians: w and w p are rounded to 24 bits each.
PHASE = 2.0**-23

# The axes of what each hook returns, to say where a difference is.
_AXES = {
    'embed': ('row', 'token', 'channel'),
    'query': ('row', 'token', 'head', 'channel'),
    'key': ('row', 'token', 'head', 'channel'),
    'bias': ('row', 'head', 'query', 'key'),
    'logits': ('row', 'head', 'query', 'key'),
    'value': ('row', 'token', 'head', 'channel'),
    'attend': ('row', 'token', 'head', 'channel'),
}


class Violation(Exception):
  """A law does not hold.

  Attributes:
    input: what shows it, by name.
  """

  def __init__(self, message: str, **given):
    super().__init__(message)
    self.input = given


class NotApplicable(Exception):
  """A law says nothing about this encoding; the message tells why."""


@contextlib.contextmanager
def refusals(kernel: Callable | None) -> Iterator[None]:
  """Makes a law not applicable where a kernel other than the default refuses the encoding."""
  try:
    yield
  except ValueError as error:
    if kernel is None:
      raise
    raise NotApplicable(str(error)) from None


def compare(
    hook: str,
    got: np.ndarray,
    want: np.ndarray,
    why: str,
    *,
    tolerance: float = ROUNDING,
    positions: Any = None,
    **given,
):
  """Raises a `Violation` at the entry where `got` is farthest from `want`.

  Args:
    hook: what returned them.
    got: the array under test.
    want: what it must be.
    why: what the two are, to end the message with.
    tolerance: of the largest absolute value, at least 1.
    positions: of the tokens [B, T], shown for the row where they differ.
    **given: other inputs to show.
  """
  if got.shape != want.shape:
    raise Violation(f'{hook} has shape {got.shape}, not {want.shape}: {why}', **given)
  if not got.size:
    return
  got, want = got.astype(np.float64), want.astype(np.float64)
  finite = np.abs(want[np.isfinite(want)])
  bound = tolerance * max(1.0, finite.max(initial=0.0))
  with np.errstate(invalid='ignore'):
    apart = np.where(got == want, 0, np.abs(got - want))
  apart = np.where(np.isnan(got) & np.isnan(want), 0, np.where(np.isnan(apart), np.inf, apart))
  at = np.unravel_index(np.argmax(apart), apart.shape)
  if apart[at] <= bound:
    return
  if positions is not None and not isinstance(positions, tuple):
    positions = np.broadcast_to(positions, got.shape[:1] + np.shape(positions)[-1:])
    given['positions'] = np.asarray(positions)[at[0]].tolist()
  raise Violation(
      f'{hook} is {got[at] + 0:.6g}, not {want[at] + 0:.6g}, at {place_of(hook, at)}: {why}',
      **given,
  )


def place_of(hook: str, at: tuple[int, ...]) -> str:
  """Says where an entry is: 'head 0, query 3, key 1'."""
  names = _AXES.get(hook)
  if hook == 'place':
    names = ('row', 'head', 'token') if len(at) == 3 else ('row', 'token')
  if names is None:
    return str([int(i) for i in at])
  return ', '.join(f'{name} {int(i)}' for name, i in zip(names, at))


def compare_hooks(got: dict, want: dict, why: str, **options):
  """Compares what every hook returned; see `compare`."""
  for hook in got:
    compare(hook, got[hook], want[hook], why, **options)
