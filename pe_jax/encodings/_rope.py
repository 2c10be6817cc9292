# SPDX-License-Identifier: Apache-2.0
"""RoPE: queries and keys are rotated by their position, so scores depend on differences only.

Pair i of a head's channels turns by the angle w_i p at position p,

  (a, b) -> (a cos w_i p - b sin w_i p, b cos w_i p + a sin w_i p),

and as R_m^T R_n = R_(n - m), the score of a query at m and a key at n sees n - m alone.

Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import scaling as scaling_rules
from pe_jax._bind import bind
from pe_jax._bind import check_choice
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.layouts import PARTS
from pe_jax.positions import expand
from pe_jax.positions import phases
from pe_jax.positions import split_turns

Array = jax.Array


@jax.jit
def rope_tables(
    positions: Array,
    inv_freq: Array,
    attention_factor: float | Array = 1.0,
    turns: Array | None = None,
) -> tuple[Array, Array]:
  """Computes cos(w_i p) and sin(w_i p), times the attention factor.

  Args:
    positions: int or float, any order, shape [..., T].
    inv_freq: w in radians per position, shape [W / 2], or [..., W / 2] for one set a row.
    attention_factor: a number, or shape [...] for one a row.
    turns: exact pieces of the frequencies that are known, see `pe_jax.positions.phases`.

  Returns:
    cos and sin, float32, shape [..., T, W / 2].

  Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864, equation 34.
  """
  angle = phases(positions, inv_freq, turns)
  tables = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
  factor = jnp.asarray(attention_factor, jnp.float32)[..., None, None]
  # One array and a barrier, else XLA on a CPU evaluates every cosine again for each head.
  cos, sin = jax.lax.optimization_barrier(tables * expand(factor, tables.ndim))
  return cos, sin


@jax.jit
def rotate_half(x: Array, cos: Array, sin: Array) -> Array:
  """Rotates the channel pairs (i, i + W / 2), as Llama's checkpoints have them.

  Args:
    x: queries or keys, shape [..., T, N, W].
    cos, sin: shape [..., T, W / 2], or with fewer leading axes where rows share them.

  Returns:
    The rotated x, in its dtype; the arithmetic is float32.
  """
  cos, sin = _over_heads(cos, x.ndim), _over_heads(sin, x.ndim)
  return _by_platform(_half_by_matrix, _half_by_parts, x, cos, sin)


@jax.jit
def rotate_interleaved(x: Array, cos: Array, sin: Array) -> Array:
  """Rotates the channel pairs (2 i, 2 i + 1), as the paper has them.

  Args and result are those of `rotate_half`.
  """
  cos, sin = _over_heads(cos, x.ndim), _over_heads(sin, x.ndim)
  return _by_platform(_interleaved_by_matrix, _interleaved_by_parts, x, cos, sin)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(0, 1))
def _by_platform(by_matrix, by_parts, x: Array, cos: Array, sin: Array) -> Array:
  """Rotates in the form that is fast where it is compiled for; both give the same numbers."""
  # checkpoint: else what one form keeps for its backward pass burdens the program of the other.
  return jax.lax.platform_dependent(x, cos, sin, tpu=by_matrix, default=by_parts)


def _over_heads(table: Array, ndim: int) -> Array:
  return expand(table[..., None, :], ndim)


def _half_by_parts(x: Array, cos: Array, sin: Array) -> Array:
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  # XLA on a CPU vectorizes two padded halves and not their concatenation: experiments.benchmark.
  rows, half = [(0, 0)] * (x.ndim - 1), x.shape[-1] // 2
  first = jnp.pad(a * cos - b * sin, [*rows, (0, half)])
  second = jnp.pad(b * cos + a * sin, [*rows, (half, 0)])
  return (first + second).astype(x.dtype)


def _interleaved_by_parts(x: Array, cos: Array, sin: Array) -> Array:
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
  a, b = pairs[..., 0], pairs[..., 1]
  turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


# A TPU moves channels slowly, except through its matrix unit: x cos + (x Q) sin, where Q turns each
# pair by 90 degrees. Every sum of x Q has one term that is not 0, so nothing is rounded: not x, and
# not the phases in its cotangent, as the precision is 'highest'.

_QUARTER_TURN = np.array([[0, 1], [-1, 0]], np.float32)  # (a, b) Q = (-b, a)


def _half_by_matrix(x: Array, cos: Array, sin: Array) -> Array:
  quarter = jnp.kron(_QUARTER_TURN, jnp.eye(x.shape[-1] // 2, dtype=jnp.float32))
  cos, sin = (jnp.concatenate([table, table], axis=-1) for table in (cos, sin))
  return _by_matrix(x, cos, sin, quarter)


def _interleaved_by_matrix(x: Array, cos: Array, sin: Array) -> Array:
  quarter = jnp.kron(jnp.eye(x.shape[-1] // 2, dtype=jnp.float32), _QUARTER_TURN)
  cos, sin = (jnp.repeat(table, 2, axis=-1) for table in (cos, sin))
  return _by_matrix(x, cos, sin, quarter)


def _by_matrix(x: Array, cos: Array, sin: Array, quarter: Array) -> Array:
  wide = x.astype(jnp.float32)
  turned = jnp.einsum('...w,wu->...u', wide, quarter, precision='highest')
  return (wide * cos + turned * sin).astype(x.dtype)


@functools.partial(jax.jit, static_argnames=('rotate', 'part'))
def apply_rope(
    x: Array,
    positions: Array,
    inv_freq: Array,
    attention_factor: float | Array = 1.0,
    turns: Array | None = None,
    *,
    rotate: Callable = rotate_half,
    part: str = 'leading',
) -> Array:
  """Rotates queries or keys by their positions.

  Args:
    x: queries or keys, shape [..., T, N, H].
    positions: int or float, any order, shape [..., T], or [T] for all rows.
    inv_freq: radians per position, shape [W / 2] with W <= H; only W channels turn.
    attention_factor: multiplies cos and sin, hence the rotated channels.
    turns: exact pieces of the frequencies that are known, see `pe_jax.positions.phases`.
    rotate: `rotate_half` or `rotate_interleaved`.
    part: 'leading' or 'trailing' channels turn where W < H; the others pass unchanged.

  Returns:
    The rotated x, in its dtype.

  Raises:
    ValueError: more frequencies than channel pairs, or another part.

  Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864.

  >>> import pe_jax
  >>> inv_freq, factor = pe_jax.scaling.default()(width=8, base=1e4)
  >>> q = jnp.eye(8)[1].reshape(1, 1, 8)
  >>> [f'{channel:.3f}' for channel in apply_rope(q, jnp.array([3]), inv_freq)[0, 0, 1::4]]
  ['0.955', '0.296']
  """
  width, size = 2 * inv_freq.shape[-1], x.shape[-1]
  if width > size:
    raise ValueError(f'{width // 2} frequencies turn {width} channels, but a head has {size}.')
  check_choice('part', part, PARTS)
  cos, sin = rope_tables(positions, inv_freq, attention_factor, turns)
  if width == size:
    return rotate(x, cos, sin)
  start = 0 if part == 'leading' else size - width
  before, turning, after = jnp.split(x, [start, start + width], axis=-1)
  return jnp.concatenate([before, rotate(turning, cos, sin), after], axis=-1)


# --- Hooks ---------------------------------------------------------------------------------------


def _constants(dims, *, base: float, width: int | None, rule: scaling_rules.Rule):
  width = dims.head_dim if width is None else width
  if width > dims.head_dim:
    raise ValueError(f'rope: width={width} is more than head_dim={dims.head_dim}: lower it.')
  arrays = rule.arrays(width, base)
  turns = np.stack([split_turns(arrays[name]) for name in rule.frequencies])
  return jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), {**arrays, 'turns': turns})


def _turn(params, x, coords, length, *, rule: scaling_rules.Rule, rotate: Callable, part: str):
  inv_freq, attention_factor = rule.at(params, length)
  turns = params['turns']
  return apply_rope(x, coords, inv_freq, attention_factor, turns, rotate=rotate, part=part)


LAYOUTS = {'half': rotate_half, 'interleaved': rotate_interleaved}


@factory
def rope(
    *,
    base: float = 1e4,
    layout: str = 'half',
    width: int | None = None,
    part: str = 'leading',
    scaling: scaling_rules.Rule = scaling_rules.default(),
) -> Encoding:
  """Rotates queries and keys by their positions.

  Angles are right to 1e-6 up to positions of 2 ** 24. Frequencies that a caller puts in the place
  of the constant `inv_freq` are float32 numbers, and so are those that a rule derives from the
  length: their angles are float32 products.

  Args:
    base: frequencies are base ** (-2 i / width).
    layout: 'half' pairs channel i with i + width / 2, 'interleaved' pairs 2 i with 2 i + 1.
    width: how many channels of a head turn; all of them unless given.
    part: 'leading' or 'trailing' channels turn where width is less than the head's.
    scaling: a rule of `pe_jax.scaling` for texts longer than the trained length.

  Raises:
    ValueError: an odd width, another layout or part, or a base that is not above 0.

  Reference: Su et al., 2021, https://arxiv.org/abs/2104.09864.

  >>> rope() == rope(base=10000)
  True
  """
  check_positive(base=base)
  check_choice('layout', layout, LAYOUTS)
  check_choice('part', part, PARTS)
  if width is not None and (width < 2 or width % 2):
    raise ValueError(f'width={width} must be even and above 0: RoPE turns channels in pairs.')
  if not isinstance(scaling, scaling_rules.Rule):
    raise ValueError(
        f'scaling={scaling!r} is no rule: call one of pe_jax.scaling, as in linear(factor=4).'
    )
  turn = bind(_turn, rule=scaling, rotate=LAYOUTS[layout], part=part)
  return Encoding(
      name='rope',
      constants=bind(_constants, base=base, width=width, rule=scaling),
      query=turn,
      key=turn,
      relative=True,
      length_dependent=scaling.length_dependent,
      reference='Su et al., 2021, arXiv:2104.09864',
  )
