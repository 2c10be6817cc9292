# SPDX-License-Identifier: Apache-2.0
"""What RoPE's frequencies do at a length: turns, wavelengths, decay of q.k, errors of phases.

Plain numpy in float64, but for the phases whose error is measured.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.positions import phases
from pe_jax.positions import split_turns


@dataclasses.dataclass(frozen=True)
class Rotation:
  """How the heads of a layer turn: `rope` with the head's width filled in.

  Attributes:
    rule: frequency rule.
    base: of the frequencies.
    width: channels that turn.
    head_dim: channels of a head.
  """

  rule: pe_jax.scaling.Rule
  base: float
  width: int
  head_dim: int

  def at(self, length: float) -> tuple[np.ndarray, float]:
    """Returns radians per position [width / 2] and the attention factor, for texts of a length."""
    inv_freq, attention_factor = self.rule(self.width, self.base, length)
    return np.asarray(inv_freq, np.float64), float(attention_factor)

  def unscaled(self) -> np.ndarray:
    """Returns the frequencies without a rule, [width / 2]."""
    return pe_jax.scaling.inverse_frequencies(self.width, self.base)


def rotation(encoding: pe_jax.Encoding, head_dim: int) -> Rotation | None:
  """Takes the numbers out of a `rope`; None for an encoding that turns nothing."""
  if encoding.query is None:
    return None
  made_of = dict(encoding.constants.keywords)
  width = made_of['width'] or head_dim
  return Rotation(made_of['rule'], made_of['base'], int(width), head_dim)


# --- Turns ---------------------------------------------------------------------------------------


def wavelengths(inv_freq: np.ndarray) -> np.ndarray:
  """Computes 2 pi / w: positions that a turn takes, infinite for a channel that does not turn."""
  with np.errstate(divide='ignore'):
    return 2 * np.pi / inv_freq


def turns(inv_freq: np.ndarray, length: float) -> np.ndarray:
  """Counts the turns that each channel makes within `length` positions."""
  return inv_freq * length / (2 * np.pi)


def stretch(
    inv_freq: np.ndarray, length: float, trained: np.ndarray, trained_length: float
) -> np.ndarray:
  """Computes how far past the angles of training each channel goes: 1 for not at all.

  A channel that completed a turn in training has met every angle. Another has met those up to the
  trained length; the result is the largest angle at `length` over the largest in training.

  Args:
    inv_freq: frequencies at work, shape [F].
    length: tokens that are read.
    trained: frequencies in training, shape [F].
    trained_length: tokens in training.
  """
  seen = turns(trained, trained_length)
  met = np.minimum(turns(inv_freq, length), 1.0)  # past a whole turn, angles repeat
  return np.maximum(np.divide(met, seen, out=np.ones_like(seen), where=_partial(seen)), 1.0)


def reach(inv_freq: np.ndarray, trained: np.ndarray, trained_length: float) -> float:
  """Computes the tokens up to which no channel meets an angle that training did not show."""
  slowed = (inv_freq > 0) & _partial(turns(trained, trained_length))
  return trained_length * float(np.min(trained[slowed] / inv_freq[slowed], initial=np.inf))


def _partial(seen: np.ndarray) -> np.ndarray:
  return (seen > 0) & (seen < 1)


# --- Scores by distance --------------------------------------------------------------------------

_SMOOTHING = 1.25


def decay(
    inv_freq: np.ndarray, attention_factor: float, head_dim: int, distances: np.ndarray
) -> np.ndarray:
  """Computes the expected q.k by distance, relative to an unrotated q.k of the same content.

  For q and k that agree equally in all channels it is f ** 2 times the mean of cos(w d) over the
  pairs that turn, plus the share of the channels that do not turn. Each value is the mean over
  distances from 0.8 d to 1.25 d, else the fast channels make noise of it.

  Args:
    inv_freq: shape [F].
    attention_factor: f.
    head_dim: channels of a head, at least 2 F.
    distances: shape [D], at least 0.

  Returns:
    Shape [D].
  """
  low, high = distances[:, None] / _SMOOTHING, distances[:, None] * _SMOOTHING
  middle, half = inv_freq * (low + high) / 2, inv_freq * (high - low) / 2
  cosines = np.cos(middle) * np.sinc(half / np.pi)  # the mean of cos over [low, high]
  still = head_dim - 2 * len(inv_freq)
  return (attention_factor**2 * 2 * cosines.sum(axis=-1) + still) / head_dim


# --- Phases --------------------------------------------------------------------------------------

PRECISIONS = {
    'pe_jax': 'pe_jax: float32, whole turns taken off before the product',
    'float32': 'float32: frequencies, positions and product',
    'bfloat16_frequencies': 'bfloat16 frequencies, product in float32 (a model cast as a whole)',
    'bfloat16': 'bfloat16: frequencies, positions and product',
}


def phase_errors(inv_freq: np.ndarray, length: int) -> dict[str, np.ndarray]:
  """Measures the error of the angle w p, in radians, modulo whole turns (so at most pi).

  Args:
    inv_freq: shape [F].
    length: measured at its last 128 positions.

  Returns:
    The largest error of each channel, shape [F], by the names of PRECISIONS.
  """
  positions = np.arange(max(length - 128, 0), length)
  exact = positions[:, None] * inv_freq
  short, where = inv_freq.astype(np.float32), positions.astype(np.float32)[:, None]
  half = inv_freq.astype(jnp.bfloat16)
  computed = {
      'pe_jax': np.asarray(phases(jnp.asarray(positions), short, split_turns(inv_freq)[None])),
      'float32': where * short,
      'bfloat16_frequencies': where * half.astype(np.float32),
      'bfloat16': where.astype(jnp.bfloat16) * half,
  }
  return {name: _turned(angle, exact).max(axis=0) for name, angle in computed.items()}


def _turned(angle: np.ndarray, exact: np.ndarray) -> np.ndarray:
  difference = angle.astype(np.float64) - exact
  return np.abs(difference - 2 * np.pi * np.round(difference / (2 * np.pi)))
