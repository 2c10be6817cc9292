# SPDX-License-Identifier: Apache-2.0
"""Which kernel `attend` takes where none is given."""

import functools

import jax

from pe_jax.kernels import _blockwise
from pe_jax.kernels import _flash_tpu
from pe_jax.kernels import _jax_nn
from pe_jax.kernels import _splash
from pe_jax.kernels._dense import dense
from pe_jax.kernels._partition import unless_partitioned
from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare

# Medians of blockwise over dense, 2 idle cores: at 128 x 128 0.87 to 0.95, with gradients 0.92 to
# 1.30; at 192 x 192 0.67 to 0.70, 0.69 to 1.04; at 256 x 256 0.61 to 0.68, 0.59 to 1.01.
#   python -m experiments.benchmark --encodings='alibi(); rope(); t5()' --lengths=128,192,256 \
#     --batch=8 --heads=4 --head_dim=32 --kernels=dense,blockwise --parts=attention --rounds=9
FEWEST_LOGITS = 192 * 192

# By platform, fused kernels with what each refuses; the first that does not is taken.
FUSED = {'tpu': (_splash, _flash_tpu), 'cuda': (_jax_nn,)}


def automatic(q, k, v, q_coords, k_coords, **options):
  """Computes attention with the kernel that suits the call and the platform of the program.

    the call                                        TPU         NVIDIA GPU   elsewhere
    has `logits`, which sees whole rows             dense       dense        dense
    T S below 192 x 192                             dense       dense        dense
    128 does not divide T and S                     blockwise   as below     blockwise
    no bias, causal, windows, half precision        splash      cudnn        blockwise
    no bias, causal, windows, segments              splash      blockwise    blockwise
    a bias that a TPU's kernel can hold             flash_tpu   blockwise    blockwise
    all else: `value`, biases of content, softcap   blockwise   blockwise    blockwise

  The platform is that which the program is compiled for, not that of the machine which compiles.
  What a fused kernel refuses exactly is told by `refusal` in its file.

  XLA cannot split a TPU's kernels among devices: a program that it splits by itself takes blockwise
  for them. Within `jax.shard_map` flash_tpu runs, and takes the calls of splash, which wants
  check_vma=False.

  See `pe_jax.kernels` for the arguments. The log-sum-exp has no gradient, as splash and cuDNN give
  none.
  """
  arguments = (q, k, v, q_coords, k_coords)
  if options['encoding'].logits is not None or q.shape[-3] * k.shape[-3] < FEWEST_LOGITS:
    return dense(*arguments, **options)
  call = prepare(*arguments, **options)
  tiled = _blockwise.passes(call)
  suited = {
      platform: [kernel for kernel in kernels if kernel.refusal(call) is None]
      for platform, kernels in FUSED.items()
  }
  fused = {platform: kernels[0].passes(call) for platform, kernels in suited.items() if kernels}
  if 'tpu' in fused:
    fused['tpu'] = Passes((fused['tpu'], tiled), _forward, _backward)
  out, lse = attention(call, **fused, default=tiled)
  return out, jax.lax.stop_gradient(lse)


def _forward(plan: tuple[Passes, Passes], *args):
  return unless_partitioned(*(functools.partial(way.forward, way.plan) for way in plan), *args)


def _backward(plan: tuple[Passes, Passes], *args):
  return unless_partitioned(*(functools.partial(way.backward, way.plan) for way in plan), *args)
