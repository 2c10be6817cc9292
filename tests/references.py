# SPDX-License-Identifier: Apache-2.0
"""The papers' formulas in float64, one number at a time.

Each table maps the name of a hook to a function of the hook's arguments. Nothing of pe_jax is used,
and no two encodings share code: a slip in one place must not hide one in another.
"""

import math

import numpy as np

# --- Press et al., 2022: ALiBi -------------------------------------------------------------------


def alibi_slopes(heads):
  """The authors' recursion: powers of two, else those below and every other of twice as many."""
  if math.log2(heads) == int(math.log2(heads)):
    return [2 ** (-8 / heads * (head + 1)) for head in range(heads)]
  fewer = 2 ** int(math.log2(heads))
  return alibi_slopes(fewer) + alibi_slopes(2 * fewer)[::2][: heads - fewer]


def _alibi(params, q, k, q_pos, k_pos, scale):
  slopes = alibi_slopes(q.shape[2])
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    out[b, h, t, s] = -slopes[h] * abs(q_pos[b, t] - k_pos[b, s])
  return out


def _alibi_learned(params, q, k, q_pos, k_pos, scale):
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    out[b, h, t, s] = -params['slopes'][h] * abs(q_pos[b, t] - k_pos[b, s])
  return out


ALIBI = {'bias': _alibi}
ALIBI_LEARNED = {'bias': _alibi_learned}


# --- Raffel et al., 2020: T5 ---------------------------------------------------------------------


def t5_bucket(relative, buckets, farthest, bidirectional):
  """Key minus query position to bucket, by the logarithm of the paper's code, in float64."""
  first = 0
  if bidirectional:
    buckets //= 2
    first = buckets if relative > 0 else 0
    back = abs(relative)
  else:
    back = max(-relative, 0)
  exact = buckets // 2
  if back < exact:
    return first + int(back)
  share = math.log(back / exact) / math.log(farthest / exact)
  return first + min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)


def t5(buckets=32, farthest=128, bidirectional=False):
  def bias(params, q, k, q_pos, k_pos, scale):
    out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    for b, h, t, s in np.ndindex(*out.shape):
      bucket = t5_bucket(k_pos[b, s] - q_pos[b, t], buckets, farthest, bidirectional)
      out[b, h, t, s] = params['table'][h, bucket]
    return out

  return {'bias': bias}


T5 = t5()


# --- Su et al., 2021: RoPE -----------------------------------------------------------------------


def rope(base=1e4, width=None, layout='half', part='leading'):
  """Pairs of channels as complex numbers, multiplied by exp(i w p)."""

  def turn(params, x, positions, length):
    rows, tokens, heads, size = x.shape
    turned = size if width is None else width
    start = size - turned if part == 'trailing' else 0
    out = x.copy()
    for b, t, h, i in np.ndindex(rows, tokens, heads, turned // 2):
      angle = positions[b, t] * base ** (-2 * i / turned)
      one, two = (i, i + turned // 2) if layout == 'half' else (2 * i, 2 * i + 1)
      z = complex(x[b, t, h, start + one], x[b, t, h, start + two])
      z *= complex(math.cos(angle), math.sin(angle))
      out[b, t, h, start + one], out[b, t, h, start + two] = z.real, z.imag
    return out

  return {'query': turn, 'key': turn}


def on_heads(reference, chosen):
  """RoPE and the like on some query heads, and on the key heads that serve them."""

  def only(turn, serves):
    def run(params, x, positions, length):
      out, turned = x.copy(), turn(params, x, positions, length)
      for head in serves:
        out[:, :, head] = turned[:, :, head]
      return out

    return run

  return {
      'query': only(reference['query'], chosen),
      'key': only(reference['key'], sorted({head // 2 for head in chosen})),
  }


# --- Sun et al., 2022: xPos ----------------------------------------------------------------------


def xpos(scale_base=512.0, gamma=0.4, base=1e4):
  """RoPE times zeta ** (n / scale_base), its inverse for keys; n is 0 six bases before the end."""

  def hook(sign):
    def run(params, x, positions, length):
      size, out = x.shape[-1], x.copy()
      for b, t, h, i in np.ndindex(*x.shape[:3], size // 2):
        zeta = (i / (size / 2) + gamma) / (1 + gamma)
        n = positions[b, t] - (length[b] - 6 * scale_base)
        factor = zeta ** (sign * n / scale_base)
        angle = positions[b, t] * base ** (-2 * i / size)
        a, b_ = x[b, t, h, i], x[b, t, h, i + size // 2]
        out[b, t, h, i] = factor * (a * math.cos(angle) - b_ * math.sin(angle))
        out[b, t, h, i + size // 2] = factor * (a * math.sin(angle) + b_ * math.cos(angle))
      return out

    return run

  return {'query': hook(1), 'key': hook(-1)}


# --- Su, 2021: log n -----------------------------------------------------------------------------


def log_n(trained):
  def query(params, q, positions, length):
    out = q.copy()
    for b, t in np.ndindex(*positions.shape):
      out[b, t] *= max(1.0, math.log(positions[b, t] + 1) / math.log(trained))
    return out

  return {'query': query}


# --- Vaswani et al., 2017: sinusoids -------------------------------------------------------------


def sinusoidal(base=1e4, order='interleaved'):
  def embed(params, x, positions):
    width, out = x.shape[-1], x.copy()
    for b, t in np.ndindex(*positions.shape):
      waves = []
      for i in range(0, width, 2):
        angle = positions[b, t] / base ** (i / width)
        waves.append((math.sin(angle), math.cos(angle)))
      if order == 'concat':
        signal = [sin for sin, _ in waves] + [cos for _, cos in waves]
      else:
        signal = [number for wave in waves for number in wave]
      out[b, t] += signal[:width]
    return out

  return {'embed': embed}


def timing_signal(min_timescale=1.0, max_timescale=1e4):
  """Vaswani et al., 2018: time scales from the shortest to the longest, both reached."""

  def embed(params, x, positions):
    out, pairs = x.copy(), x.shape[-1] // 2
    for b, t in np.ndindex(*positions.shape):
      for i in range(pairs):
        timescale = min_timescale * (max_timescale / min_timescale) ** (i / (pairs - 1))
        out[b, t, i] += math.sin(positions[b, t] / timescale)
        out[b, t, pairs + i] += math.cos(positions[b, t] / timescale)
    return out

  return {'embed': embed}


def concatenated(width, base=1e4):
  def embed(params, x, positions):
    out = x.copy()
    for b, t in np.ndindex(*positions.shape):
      for c in range(width):
        angle = positions[b, t] / base ** ((c - c % 2) / width)
        out[b, t, x.shape[-1] - width + c] = math.cos(angle) if c % 2 else math.sin(angle)
    return out

  return {'embed': embed}


# --- Gehring et al., 2017: learned positions -----------------------------------------------------


def learned(offset=0):
  def embed(params, x, positions):
    out = x.copy()
    for b, t in np.ndindex(*positions.shape):
      out[b, t] += params['table'][int(positions[b, t]) + offset]
    return out

  return {'embed': embed}


# --- Shaw et al., 2018 ---------------------------------------------------------------------------


def _shaw_row(q_pos, k_pos, table):
  clip = (len(table) - 1) // 2
  return table[int(max(-clip, min(clip, k_pos - q_pos))) + clip]


def _shaw_bias(params, q, k, q_pos, k_pos, scale):
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    row = _shaw_row(q_pos[b, t], k_pos[b, s], params['keys'])
    out[b, h, t, s] = scale * sum(q[b, t, h, c] * row[c] for c in range(len(row)))
  return out


def _shaw_value(params, weights, q_pos, k_pos):
  rows, heads, queries, keys = weights.shape
  out = np.zeros((rows, queries, heads, params['values'].shape[1]))
  for b, h, t, s in np.ndindex(*weights.shape):
    out[b, t, h] += weights[b, h, t, s] * _shaw_row(q_pos[b, t], k_pos[b, s], params['values'])
  return out


SHAW = {'bias': _shaw_bias, 'value': _shaw_value}


# --- Lin et al., 2025: FoX -----------------------------------------------------------------------


def _fox_place(params, x, positions, segments, carry):
  rows, tokens, _ = x.shape
  heads = len(params['bias'])
  out = np.zeros((rows, heads, tokens))
  for b in range(rows):
    total, current = np.array(carry['sum'][b]), carry['segment'][b]
    for t in range(tokens):
      if segments[b, t] != 0:
        if segments[b, t] != current:
          total, current = np.zeros(heads), segments[b, t]
        for h in range(heads):
          logit = float(np.dot(params['kernel'][h], x[b, t])) + params['bias'][h]
          total[h] += math.log(1 / (1 + math.exp(-logit)))
      out[b, :, t] = total
  return out


def _fox_bias(params, q, k, q_sums, k_sums, scale):
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(*out.shape):
    out[b, h, t, s] = q_sums[b, h, t] - k_sums[b, h, s]
  return out


FOX = {'place': _fox_place, 'bias': _fox_bias}


# --- Golovneva et al., 2024: CoPE ----------------------------------------------------------------


def _cope_logits(params, logits, q, k, q_pos, k_pos, mask):
  out, table = logits.copy(), params['table']
  for b, h, t, s in np.ndindex(*logits.shape):
    count = 0.0
    for later in range(s, logits.shape[3]):
      if mask[b, 0, t, later]:
        count += 1 / (1 + math.exp(-logits[b, h, t, later]))
    count = min(count, len(table) - 1)
    low, high = math.floor(count), math.ceil(count)
    share = count - low
    out[b, h, t, s] += (1 - share) * np.dot(q[b, t, h], table[low])
    out[b, h, t, s] += share * np.dot(q[b, t, h], table[high])
  return out


COPE = {'logits': _cope_logits}
