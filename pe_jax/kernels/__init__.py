# SPDX-License-Identifier: Apache-2.0
"""Ways to compute attention. Each is a function of the same arguments:

  kernel(q, k, v, q_coords, k_coords, *, encoding, params, mask, scale, length, softcap)
    -> (output [..., T, N, H], log-sum-exp of the logits [..., T, N])

as `pe_jax.attend` calls it: params complete, coordinates with the batch axes of q, scale given.
What a kernel cannot honour it refuses. Queries that see nothing are `attend`'s to silence.
"""

from pe_jax.kernels._blockwise import blockwise
from pe_jax.kernels._choose import automatic
from pe_jax.kernels._dense import dense
from pe_jax.kernels._flash_tpu import flash_tpu
from pe_jax.kernels._jax_nn import cudnn
from pe_jax.kernels._jax_nn import xla
from pe_jax.kernels._splash import splash

__all__ = ('automatic', 'blockwise', 'cudnn', 'dense', 'flash_tpu', 'splash', 'xla')
