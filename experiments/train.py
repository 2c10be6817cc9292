# SPDX-License-Identifier: Apache-2.0
"""Trains one decoder per seed and grid point, all at once by vmap, in chunks of steps.

Everything is a pure function: a batch of (seed, step), a state of (state, text, range of steps). A
run that was stopped therefore goes on to the same numbers.
"""

import dataclasses
import functools
import itertools
from typing import Any
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

import pe_jax
from pe_jax import transformer

Array = jax.Array
VOCABULARY = 256  # bytes


class State(NamedTuple):
  """What a step changes; every leaf has the members as its first axis."""

  model: transformer.Decoder
  optimizer: optax.OptState


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What is fixed when a step is compiled."""

  model: transformer.Config
  encoding: pe_jax.Encoding
  window: int
  batch: int
  steps: int


@dataclasses.dataclass(frozen=True)
class Members:
  """The runs that are trained together: every point of the grid with every seed.

  Attributes:
    points: settings of each grid point that differ from the config's.
    seeds: seeds of each point.
    seed: seed of each member, int32 [M].
    hypers: every float of config.optimizer for each member, float32 [M].
  """

  points: tuple[dict[str, float], ...]
  seeds: tuple[int, ...]
  seed: np.ndarray
  hypers: dict[str, np.ndarray]

  def labels(self) -> list[str]:
    """Names the members as curves do: 'learning_rate_0.001/seed_0'."""
    return [
        '/'.join(f'{name}_{value:g}' for name, value in [*point.items(), ('seed', seed)])
        for point in self.points
        for seed in self.seeds
    ]


def recipe(config: ml_collections.FrozenConfigDict, encoding: pe_jax.Encoding) -> Recipe:
  return Recipe(
      model=transformer.Config(vocab=VOCABULARY, **config.model),
      encoding=encoding,
      window=config.window,
      batch=config.batch,
      steps=config.steps,
  )


def members(config: ml_collections.FrozenConfigDict) -> Members:
  """Crosses the grid with the seeds; the seeds of a point are neighbours."""
  swept = {name: values for name, values in config.grid.items() if values}
  points = tuple(
      dict(zip(swept, map(float, values), strict=True))
      for values in itertools.product(*swept.values())
  )
  seeds = tuple(range(config.seed, config.seed + config.seeds))
  hypers = {
      name: np.repeat([np.float32(point.get(name, value)) for point in points], len(seeds))
      for name, value in config.optimizer.items()
  }
  return Members(points, seeds, np.tile(np.array(seeds, np.int32), len(points)), hypers)


def draw_batch(text: Array, seed: Array, step: Array, *, batch: int, window: int) -> Array:
  """Draws the rows of one step, a function of (seed, step) alone.

  Args:
    text: all bytes to train on, uint8 [n].
    seed: int32.
    step: int32.
    batch: rows.
    window: tokens of a row.

  Returns:
    Bytes, int32 [batch, window + 1]: inputs are all but the last, targets all but the first.
  """
  order = jax.random.fold_in(_keys(seed)[1], step)
  start = jax.random.randint(order, (batch, 1), 0, text.size - window)
  return text[start + jnp.arange(window + 1)[None, :]].astype(jnp.int32)


def next_byte_losses(model: transformer.Decoder, rows: Array) -> Array:
  """Computes -log p(byte t + 1 | bytes 0 .. t) in nats, float32 [..., T], for rows [..., T + 1]."""
  logits = model(rows[..., :-1])
  return optax.softmax_cross_entropy_with_integer_labels(logits, rows[..., 1:])


def init(seed: Array, hypers: dict[str, Array], *, recipe: Recipe) -> State:
  """Makes the state of all members before the first step."""
  return jax.vmap(functools.partial(_init_one, recipe=recipe))(seed, hypers)


def model_shapes(recipe: Recipe) -> transformer.Decoder:
  """Returns the shapes of one model's arrays; raises what building or calling the model raises."""
  model = jax.eval_shape(functools.partial(make_model, recipe=recipe), 0)
  rows = jax.ShapeDtypeStruct((recipe.batch, recipe.window + 1), jnp.int32)
  jax.eval_shape(next_byte_losses, model, rows)
  return model


def run_steps(
    state: State,
    text: Array,
    seed: Array,
    hypers: dict[str, Array],
    start: Array,
    stop: Array,
    *,
    recipe: Recipe,
) -> tuple[State, Array]:
  """Runs steps start .. stop - 1 of all members.

  The bounds are traced, so a last chunk that is shorter is the same program.

  Returns:
    The state after them and the mean loss over them, float32 [M].
  """

  def one(state, seed, hypers, step):
    rows = draw_batch(text, seed, step, batch=recipe.batch, window=recipe.window)
    return update(state, rows, hypers, steps=recipe.steps)

  def body(step, carry):
    state, total = carry
    state, loss = jax.vmap(one, in_axes=(0, 0, 0, None))(state, seed, hypers, step)
    return state, total + loss

  state, total = jax.lax.fori_loop(start, stop, body, (state, jnp.zeros(seed.shape)))
  return state, total / (stop - start)


def update(
    state: State, rows: Array, hypers: dict[str, Array], *, steps: int
) -> tuple[State, Array]:
  """Runs one step of one member; returns its state and its loss."""

  def mean_loss(model):
    return next_byte_losses(model, rows).mean()

  loss, gradient = jax.value_and_grad(mean_loss)(state.model)
  optimizer = make_optimizer(hypers, steps=steps)
  updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.model)
  return State(optax.apply_updates(state.model, updates), optimizer_state), loss


def make_optimizer(hypers: dict[str, Any], *, steps: int) -> optax.GradientTransformation:
  """AdamW after clipping, with a linear warm-up and a cosine; every number may be traced."""

  def learning_rate(step):
    warm = jnp.minimum(1.0, (step + 1) / jnp.maximum(hypers['warmup'] * steps, 1.0))
    decay = 0.5 * (1.0 + jnp.cos(jnp.pi * step / steps))
    return hypers['learning_rate'] * warm * (hypers['final'] + (1.0 - hypers['final']) * decay)

  return optax.chain(
      optax.clip_by_global_norm(hypers['clip_norm']),
      optax.adamw(
          learning_rate,
          b1=hypers['b1'],
          b2=hypers['b2'],
          eps=hypers['eps'],
          weight_decay=hypers['weight_decay'],
      ),
  )


def _keys(seed: Array) -> Array:
  """Splits a seed into the key of the initial values and that of the order of the data."""
  return jax.random.split(jax.random.key(seed))


def make_model(seed: Array, *, recipe: Recipe) -> transformer.Decoder:
  return transformer.Decoder(recipe.model, recipe.encoding, rngs=nnx.Rngs(_keys(seed)[0]))


def _init_one(seed: Array, hypers: dict[str, Array], *, recipe: Recipe) -> State:
  model = make_model(seed, recipe=recipe)
  return State(model, make_optimizer(hypers, steps=recipe.steps).init(model))
