# SPDX-License-Identifier: Apache-2.0
"""RoPE under every frequency rule, in float64 loops written from the papers."""

import cmath
import math

import numpy as np


def rotation(frequencies, factor=lambda length: 1.0):
  """Pairs of channels as complex numbers, multiplied by factor exp(i w p); half layout.

  Args:
    frequencies: (width, length) -> w for each pair.
    factor: (length) -> number.
  """

  def turn(params, x, positions, length):
    out, half = x.copy(), x.shape[-1] // 2
    for b in range(x.shape[0]):
      grown = factor(length[b])
      for i, w in enumerate(frequencies(x.shape[-1], length[b])):
        for t, h in np.ndindex(x.shape[1:3]):
          z = complex(x[b, t, h, i], x[b, t, h, i + half])
          z *= grown * cmath.exp(1j * positions[b, t] * w)
          out[b, t, h, i], out[b, t, h, i + half] = z.real, z.imag
    return out

  return {'query': turn, 'key': turn}


def loop(width, base):
  return [base ** (-2 * i / width) for i in range(width // 2)]


def ntk(width, base, factor):
  return loop(width, base * factor ** (width / (width - 2)))


def ntk_fixed(width, base, factor):
  return [w / factor ** (2 / width) for w in loop(width, base * factor)]


def ntk_mixed(width, base, factor, exponent):
  a = math.log(factor) / (width / 2) ** exponent
  return [w / math.exp(a * (i + 1) ** exponent) for i, w in enumerate(loop(width, base))]


def dynamic_ntk(width, base, factor, trained, length):
  return ntk(width, base, max(factor * length / trained - (factor - 1), 1))


def yarn(width, base, factor, length, fast=32, slow=1, truncate=True):
  """Section 3.2 of the paper in its own terms: r turns within the length, ramp between indices."""

  def index(turns):
    return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

  low, high = index(fast), index(slow)
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  found = []
  for i, w in enumerate(loop(width, base)):
    ramp = min(max((i - low) / (high - low), 0), 1)
    found.append((1 - ramp) * w + ramp * w / factor)
  return found


def llama3(width, base, factor, length, low=1, high=4):
  found = []
  for w in loop(width, base):
    wavelength = 2 * math.pi / w
    if wavelength < length / high:
      found.append(w)
    elif wavelength > length / low:
      found.append(w / factor)
    else:
      smooth = (length / wavelength - low) / (high - low)
      found.append((1 - smooth) * w / factor + smooth * w)
  return found
