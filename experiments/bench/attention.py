# SPDX-License-Identifier: Apache-2.0
"""Causal attention with an encoding: the programs that are timed or compiled, by kernel."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments import errors
from experiments.bench import turns
import pe_jax
from pe_jax import kernels

DEFAULT = 'default'  # kernel=None
REFERENCE = 'xla'  # jax.nn with the bias
NONE = 'none()'
FORWARD, BACKWARD, LAYER = 'forward', 'forward+backward', 'layer'
CAUSAL = pe_jax.Mask(causal=True)


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes of q, k and v, [batch, length, heads, head_dim], and their dtype."""

  batch: int
  length: int
  heads: int
  head_dim: int
  dtype: str

  @property
  def dims(self) -> pe_jax.Dims:
    return pe_jax.Dims(model=self.heads * self.head_dim, heads=self.heads, head_dim=self.head_dim)

  @property
  def queries(self) -> tuple[int, ...]:
    return (self.batch, self.length, self.heads, self.head_dim)


def kernel_names() -> list[str]:
  """The kernels of pe_jax, and the choice that `attend` makes."""
  return [DEFAULT, *(name for name in kernels.__all__ if name != 'automatic')]


def read_kernels(names: Sequence[str]) -> tuple[str, ...]:
  """Checks the names of --kernels; `default` and the reference are always among the kernels."""
  for name in names:
    if name not in kernel_names():
      known = errors.closest_first(name, kernel_names())
      raise errors.UserError(f'there is no kernel {name!r}: --kernels takes {known}')
  return tuple(dict.fromkeys((DEFAULT, *names, REFERENCE)))


def kernel(name: str) -> Callable | None:
  return None if name == DEFAULT else getattr(kernels, name)


def check(encoding: pe_jax.Encoding, shape: Shape) -> None:
  """Refuses what attention would compute without the encoding, or with NaN."""
  if encoding.embed is not None and not encoding.in_attention:
    raise turns.Refused('it acts on the embedding: attention is that of none()')
  if encoding.max_length is not None and shape.length > encoding.max_length:
    raise turns.Refused(f'it has {encoding.max_length} positions')


# --- What is computed ----------------------------------------------------------------------------


def inputs(encoding: pe_jax.Encoding, shape: Shape) -> tuple[Any, ...]:
  """Draws (q, k, v, trained arrays, hidden state for `place`, which only some encodings read)."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, *shape.queries), shape.dtype)
  params = encoding.init(jax.random.key(1), shape.dims)
  hidden = None
  if encoding.place is not None:
    size = (shape.batch, shape.length, shape.dims.model)
    hidden = jax.random.normal(jax.random.key(2), size, shape.dtype)
  return q, k, v, params, hidden


def cotangent(shape: Shape) -> jax.Array:
  """Draws what the backward pass starts from."""
  return jax.random.normal(jax.random.key(3), shape.queries, shape.dtype)


def attend(encoding: pe_jax.Encoding, name: str, q, k, v, params, hidden) -> jax.Array:
  """Attends to the tokens of every row, with `place` where the encoding has it."""
  coords = jnp.arange(q.shape[1])
  if encoding.place is not None:
    dims = pe_jax.Dims(model=hidden.shape[-1], heads=q.shape[2], head_dim=q.shape[3])
    tokens = hidden.shape[:2]
    coords, _ = encoding.place(
        pe_jax.assemble(encoding, params, dims),
        hidden,
        jnp.broadcast_to(coords[None], tokens),
        jnp.ones(tokens, jnp.int32),
        pe_jax.initial_carry(encoding, dims, tokens[:1]),
    )
  return pe_jax.attend(
      q, k, v, coords, coords, encoding=encoding, params=params, mask=CAUSAL, kernel=kernel(name)
  )


def layer(encoding: pe_jax.Encoding, name: str, weights, hidden, params) -> jax.Array:
  """Attends with four projections around it: weights q, k, v [D, N, H] and out [N, H, D]."""
  q, k, v = (jnp.einsum('btd,dnh->btnh', hidden, weights[part]) for part in 'qkv')
  out = attend(encoding, name, q, k, v, params, hidden)
  return jnp.einsum('btnh,nhd->btd', out, weights['out'])


def layer_inputs(encoding: pe_jax.Encoding, shape: Shape) -> tuple[Any, ...]:
  """Draws (weights, hidden state, trained arrays) of `layer`."""
  wide = (shape.dims.model, shape.heads, shape.head_dim)
  scale = wide[0] ** -0.5
  qkv = jax.random.normal(jax.random.key(4), (3, *wide), shape.dtype) * scale
  out = jax.random.normal(jax.random.key(5), (*wide[1:], wide[0]), shape.dtype) * scale
  hidden = jax.random.normal(jax.random.key(2), (*shape.queries[:2], wide[0]), shape.dtype)
  weights = {**dict(zip('qkv', qkv)), 'out': out}
  return weights, hidden, encoding.init(jax.random.key(1), shape.dims)


def with_gradients(fn: Callable, cotangent, *args) -> tuple[jax.Array, tuple[Any, ...]]:
  """Returns the output, and the gradients to all arguments."""
  out, back = jax.vjp(fn, *args)
  return out, back(cotangent)


def program(
    encoding: pe_jax.Encoding, name: str, shape: Shape, phase: str
) -> tuple[Callable, Callable[[], tuple[Any, ...]]]:
  """Returns a function and what makes its arguments, for a phase of the benchmark."""
  if phase == LAYER:
    fn = functools.partial(layer, encoding, name)

    def arguments():
      weights, hidden, params = layer_inputs(encoding, shape)
      return hidden, weights, hidden, params  # the cotangent has the shape of hidden

    return functools.partial(with_gradients, fn), arguments
  fn = functools.partial(attend, encoding, name)
  if phase == FORWARD:
    return fn, lambda: inputs(encoding, shape)
  return (
      functools.partial(with_gradients, fn),
      lambda: (cotangent(shape), *inputs(encoding, shape)),
  )


# --- Sides ---------------------------------------------------------------------------------------


class Plan(NamedTuple):
  """One program of a comparison: an encoding by a kernel; see `turns.Side` for the fields."""

  name: str
  role: str
  typed: str
  encoding: pe_jax.Encoding
  kernel: str
  over: dict[str, str]


def plan(typed: str, encoding: pe_jax.Encoding, names: Sequence[str]) -> list[Plan]:
  """Lists every kernel with the encoding, and the same without any."""
  alone = encoding == pe_jax.none()
  made = []
  for name in names:
    over = {'jax.nn': REFERENCE, 'none()': name if alone else without(name)}
    made.append(Plan(name, 'kernel', typed, encoding, name, over))
  bare = [Plan(without(name), 'none', NONE, pe_jax.none(), name, {}) for name in names]
  return made if alone else made + bare


def sides(plans: Sequence[Plan], shape: Shape, phase: str) -> list[turns.Side]:
  """Makes what is timed; every kernel must compute what the default does."""
  like = {plan.name: DEFAULT for plan in plans if plan.role == 'kernel' and plan.kernel != DEFAULT}
  return [
      turns.Side(
          name=plan.name,
          role=plan.role,
          make=functools.partial(_make, plan, shape, phase),
          over=plan.over,
          like=like.get(plan.name),
      )
      for plan in plans
  ]


def _make(plan: Plan, shape: Shape, phase: str) -> turns.Ready:
  check(plan.encoding, shape)
  fn, arguments = program(plan.encoding, plan.kernel, shape, phase)
  return turns.compiled(fn, *arguments(), outputs=functools.partial(outputs, phase=phase))


def without(name: str) -> str:
  """Names the side that has a kernel and no encoding."""
  return f'{NONE} by {name}'


def outputs(found: Any, *, phase: str) -> list[jax.Array]:
  """Takes out what other libraries compute too: the output and the gradients to q, k, v."""
  return [found] if phase == FORWARD else [found[0], *found[1][:3]]
