# SPDX-License-Identifier: Apache-2.0
"""No encoding. A causal mask alone still tells a decoder something of order."""

from pe_jax._bind import factory
from pe_jax.base import Encoding


@factory
def none() -> Encoding:
  """Leaves attention blind to positions.

  Reference: Haviv et al., 2022, https://arxiv.org/abs/2203.16634; Kazemnejad et al., 2023,
  https://arxiv.org/abs/2305.19466.

  >>> none().in_attention
  False
  """
  return Encoding(name='none', relative=True, reference='Haviv et al., 2022, arXiv:2203.16634')
