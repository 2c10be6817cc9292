# SPDX-License-Identifier: Apache-2.0
"""The formulas of papers on biases in float64, one number at a time; see references.py."""

import math

import numpy as np

# --- Chi et al., 2022: KERPLE --------------------------------------------------------------------


def _kerple_log(params, q, k, q_pos, k_pos, scale):
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    strength, slope = math.exp(params['log_r1'][h]), math.exp(params['log_r2'][h])
    out[b, h, t, s] = -strength * math.log(1 + slope * abs(q_pos[b, t] - k_pos[b, s]))
  return out


def _kerple_power(params, q, k, q_pos, k_pos, scale):
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    exponent = 2 / (1 + math.exp(-params['logit_r2'][h]))
    out[b, h, t, s] = -math.exp(params['log_r1'][h]) * abs(q_pos[b, t] - k_pos[b, s]) ** exponent
  return out


KERPLE_LOG = {'bias': _kerple_log}
KERPLE_POWER = {'bias': _kerple_power}


# --- Chi et al., 2022: Sandwich ------------------------------------------------------------------


def sandwich(width=128, base=1e4):
  """The inner product of two sinusoidal rows, compressed by 8 h / H for head h of H."""

  def row(position):
    waves = []
    for i in range(width // 2):
      angle = position / base ** (2 * i / width)
      waves += [math.sin(angle), math.cos(angle)]
    return waves

  def bias(params, q, k, q_pos, k_pos, scale):
    heads = q.shape[2]
    out = np.zeros((q.shape[0], heads, q.shape[1], k.shape[1]))
    for b, t, s in np.ndindex(q.shape[0], q.shape[1], k.shape[1]):
      product = np.dot(row(q_pos[b, t]), row(k_pos[b, s]))
      for head in range(heads):
        out[b, head, t, s] = product / (8 * (head + 1) / heads)
    return out

  return {'bias': bias}


SANDWICH = sandwich()


# --- Li et al., 2023: FIRE -----------------------------------------------------------------------


def _fire(params, q, k, q_pos, k_pos, scale):
  c, threshold = math.exp(params['log_c']), math.exp(params['log_threshold'])
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    numerator = math.log(c * abs(q_pos[b, t] - k_pos[b, s]) + 1)
    x = numerator / math.log(c * max(threshold, q_pos[b, t]) + 1)
    for i in range(len(params['w'])):
      hidden = max(params['w'][i] * x + params['b'][i], 0.0)
      out[b, h, t, s] += params['v'][h, i] * hidden
  return out


FIRE = {'bias': _fire}


# --- Huang et al., 2018: Music Transformer -------------------------------------------------------


def _music_transformer(params, q, k, q_pos, k_pos, scale):
  reach = (params['table'].shape[1] - 1) // 2
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    step = min(max(round(k_pos[b, s] - q_pos[b, t]), -reach), reach)
    out[b, h, t, s] = scale * np.dot(q[b, t, h], params['table'][h, step + reach])
  return out


MUSIC_TRANSFORMER = {'bias': _music_transformer}


# --- Dai et al., 2019: Transformer-XL ------------------------------------------------------------


def transformer_xl(base=1e4):
  """Terms b, c and d of the paper; a is the product of query and key."""

  def sinusoid(steps, width):
    angles = [steps / base ** (i / width) for i in range(0, width, 2)]
    return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])

  def bias(params, q, k, q_pos, k_pos, scale):
    out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    for b, h, t, s in np.ndindex(*out.shape):
      projection = params['projection'][h]
      place = projection @ sinusoid(q_pos[b, t] - k_pos[b, s], projection.shape[1])
      term_b = np.dot(q[b, t, h], place)
      term_c = np.dot(params['u'][h], k[b, s, h])
      term_d = np.dot(params['v'][h], place)
      out[b, h, t, s] = scale * (term_b + term_c + term_d)
    return out

  return {'bias': bias}


TRANSFORMER_XL = transformer_xl()
