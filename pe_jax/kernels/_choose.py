# SPDX-License-Identifier: Apache-2.0
"""Which kernel `attend` takes where none is given."""

from pe_jax.kernels._blockwise import blockwise
from pe_jax.kernels._dense import dense

# Medians of blockwise over dense, in turns on 2 loaded cores, alibi, batches of 1 to 32, 4 heads of
# 32 and 8 of 64: from here on 0.20 to 0.93; below, 1.07 to 1.58 for the gradients.
FEWEST_LOGITS = 256 * 256


def choose(encoding, queries: int, keys: int):
  """Returns the kernel for an encoding, T queries and S keys.

    the encoding, the sizes                     kernel
    has `logits`, which sees whole rows         dense
    T S below 256 x 256                         dense
    all else                                    blockwise
  """
  if encoding.logits is not None or queries * keys < FEWEST_LOGITS:
    return dense
  return blockwise
