# SPDX-License-Identifier: Apache-2.0
"""Loss by length on the same bytes, in windows that do not overlap.

Stretches of held-out text, spread evenly over it, are cut into windows of each length. All lengths
therefore predict the same bytes; only the context that a byte is predicted from differs. A window
starts without context, so its first bytes are hard to predict at any length; the last quarter of
the window shows what is left when that is taken away.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from experiments import train

Array = jax.Array


def lengths(config: ml_collections.FrozenConfigDict) -> list[int]:
  """The lengths to evaluate at, from the multiples of the window in the config."""
  return [round(config.window * times) for times in config.evaluate.times]


def stretch_length(config: ml_collections.FrozenConfigDict) -> int:
  """Bytes of a stretch: the shortest that windows of every length fill exactly."""
  return math.lcm(*lengths(config))


def stretches(text: np.ndarray, *, length: int, size: int) -> np.ndarray:
  """Picks stretches of a text that do not overlap and spread evenly over it.

  Args:
    text: uint8 [n].
    length: targets of a stretch.
    size: targets of all stretches together, at most.

  Returns:
    uint8 [size // length, length + 1], at least one row: a stretch and the byte that follows it.
  """
  count = max(1, min(size, text.size - 1) // length)
  start = np.linspace(0, text.size - 1 - length, count).astype(np.int64)
  return text[start[:, None] + np.arange(length + 1)[None, :]]


def windows(stretches: np.ndarray, length: int) -> np.ndarray:
  """Cuts stretches into windows: [n, s + 1] -> [n * s / length, length + 1]."""
  inputs = stretches[:, :-1].reshape(-1, length)
  targets = stretches[:, 1:].reshape(-1, length)
  return np.concatenate([inputs, targets[:, -1:]], axis=1)


def losses_by_position(model: Any, rows: np.ndarray, *, batch: int) -> np.ndarray:
  """Computes the mean loss of each member at each position of the window.

  Args:
    model: trained arrays with a leading axis of members.
    rows: bytes, uint8 [n, L + 1].
    batch: rows that are evaluated at once.

  Returns:
    Nats per byte, float64 [M, L].
  """
  count = -(-len(rows) // batch)
  padding = count * batch - len(rows)
  padded = np.pad(rows, ((0, padding), (0, 0))).reshape(count, batch, -1)
  weight = np.pad(np.ones(len(rows), np.float32), (0, padding)).reshape(count, batch)
  totals = jax.vmap(_sum_losses, in_axes=(0, None, None))
  return np.asarray(jax.jit(totals)(model, padded, weight), np.float64) / len(rows)


def _sum_losses(model: Any, rows: Array, weight: Array) -> Array:
  def add(total, batch):
    rows, weight = batch
    losses = train.next_byte_losses(model, rows.astype(jnp.int32))
    return total + jnp.sum(weight[:, None] * losses, axis=0), None

  start = jnp.zeros(rows.shape[-1] - 1)
  return jax.lax.scan(add, start, (rows, weight))[0]


def by_length(
    model: Any,
    text: np.ndarray,
    config: ml_collections.FrozenConfigDict,
    max_length: int | None,
) -> list[dict[str, Any]]:
  """Evaluates all members at every length.

  Args:
    model: trained arrays with a leading axis of members.
    text: held-out bytes, uint8 [n].
    config: of the experiment.
    max_length: positions that the encoding has, None for no limit.

  Returns:
    For each length its loss and that of the last quarter of the window, one number a member, or the
    reason why there is none.
  """
  chosen = stretches(text, length=stretch_length(config), size=config.evaluate.bytes)
  return [_at_length(model, chosen, length, config, max_length) for length in lengths(config)]


def _at_length(model, chosen, length, config, max_length) -> dict[str, Any]:
  if max_length is not None and length > max_length:
    return {'length': length, 'reason': f'its table ends at {max_length} positions'}
  rows = windows(chosen, length)
  losses = losses_by_position(model, rows, batch=max(1, config.evaluate.batch_tokens // length))
  return {
      'length': length,
      'bytes': int(rows.shape[0] * length),
      'loss': losses.mean(axis=1).tolist(),
      'last_quarter': losses[:, -max(1, length // 4) :].mean(axis=1).tolist(),
  }
