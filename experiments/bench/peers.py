# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries, with the biases of an encoding as they take them.

All take an array of biases [1, N, T, S], or a table of them by distance (FlexAttention), made of
the encoding's own hook beforehand, so its making is not timed. torch is timed on a CPU only.
"""

from collections.abc import Callable
import functools
import importlib.metadata
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import attention
from experiments.bench import turns
import pe_jax

LIBRARIES = ('rotary-embedding-torch', 'tokamax', 'torch', 'transformers', 'x-transformers')


def versions() -> dict[str, str | None]:
  """Returns the version of each library, None where it is not installed."""
  found = {}
  for name in LIBRARIES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = None
  return found


def sides(
    encoding: pe_jax.Encoding, shape: attention.Shape, phase: str
) -> list[turns.Side]:
  """Makes the sides of other libraries, in the same shapes."""
  makers = {
      'jax.nn, bias given': functools.partial(_jax, _jax_nn),
      'tokamax xla_chunked': functools.partial(_jax, _tokamax),
      'torch SDPA': _sdpa,
      'torch FlexAttention': _flex,
  }

  def make(maker: Callable) -> turns.Ready:
    attention.check(encoding, shape)
    refuse_what_is_no_bias(encoding)
    return maker(encoding, shape, phase)

  return [
      turns.Side(
          name,
          'peer',
          functools.partial(make, maker),
          over={'jax.nn': attention.REFERENCE},
          like=attention.DEFAULT,
      )
      for name, maker in makers.items()
  ]


def refuse_what_is_no_bias(encoding: pe_jax.Encoding) -> None:
  """Refuses encodings that do more to attention than to add a bias of the positions."""
  hooks = ('place', 'query', 'key', 'logits', 'value')
  acting = [f'has the hook `{hook}`' for hook in hooks if getattr(encoding, hook) is not None]
  acting += ['reads q and k'] if encoding.reads_content else []
  if acting:
    raise turns.Refused(f'it takes biases of positions, and {encoding} {" and ".join(acting)}')


def bias_of(encoding: pe_jax.Encoding, shape: attention.Shape) -> jax.Array | None:
  """Computes the biases of all pairs, [1, N, T, S]; None where there are none."""
  if encoding.bias is None:
    return None
  q, k, _, params, _ = attention.inputs(encoding, shape)
  params = pe_jax.assemble(encoding, params, shape.dims)
  positions = jnp.arange(shape.length)
  scale = shape.head_dim**-0.5
  bias = jax.jit(lambda *args: encoding.bias(*args, positions, positions, scale))(params, q, k)
  return pe_jax.positions.expand(bias, 4)


# --- JAX -----------------------------------------------------------------------------------------


def _jax(attend: Callable, encoding, shape, phase) -> turns.Ready:
  q, k, v, params, _ = attention.inputs(encoding, shape)
  args, note = (q, k, v), ''
  if (bias := bias_of(encoding, shape)) is not None:
    args, note = (q, k, v, bias), f'its biases are given, {bias.nbytes / 1e6:.0f} MB'
  trained = bool(jax.tree.leaves(params))
  if phase == attention.FORWARD:
    return turns.compiled(attend, *args, note=note)
  fixed = args[3:] if not trained else ()
  fn = lambda start, fixed, *moving: attention.with_gradients(
      lambda *moving: attend(*moving, *fixed), start, *moving
  )
  if trained:
    note += ', with their gradient, which is not taken on to the parameters'
  return turns.compiled(
      fn,
      attention.cotangent(shape),
      fixed,
      *args[: len(args) - len(fixed)],
      outputs=functools.partial(attention.outputs, phase=phase),
      note=note,
  )


def _jax_nn(q, k, v, bias=None):
  return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation='xla')


def _tokamax(q, k, v, bias=None):
  import tokamax

  return tokamax.dot_product_attention(
      q, k, v, bias=bias, is_causal=True, implementation='xla_chunked'
  )


# --- torch ---------------------------------------------------------------------------------------


def load_torch():
  """Imports torch, with as many threads as this process has cores."""
  if (platform := jax.devices()[0].platform) != 'cpu':
    raise turns.Refused(f'torch is timed on a CPU only, and this device is a {platform}')
  import torch

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  return torch


def to_torch(torch, x: jax.Array) -> Any:
  """Reorders [B, T, N, H] as [B, N, T, H] and hands it over."""
  dtype = getattr(torch, x.dtype.name)
  return torch.from_numpy(np.array(x, np.float32)).to(dtype).transpose(1, 2).contiguous()


def from_torch(x: Any) -> np.ndarray:
  """Takes an array [B, N, T, H] back as [B, T, N, H]."""
  return x.detach().float().transpose(1, 2).numpy()


def _torch(torch, attend: Callable, encoding, shape, phase, note: str) -> turns.Ready:
  """Makes a side of attend(q, k, v)."""
  backward = phase == attention.BACKWARD
  q, k, v = (to_torch(torch, x) for x in attention.inputs(encoding, shape)[:3])
  start = to_torch(torch, attention.cotangent(shape))
  for x in (q, k, v):
    x.requires_grad_(backward)

  def run():
    if not backward:
      with torch.no_grad():
        return (attend(q, k, v),)
    out = attend(q, k, v)
    return (out, *torch.autograd.grad(out, (q, k, v), start))

  return turns.Ready(run, lambda found: [from_torch(x) for x in found], note=note)


def _sdpa(encoding, shape, phase) -> turns.Ready:
  torch = load_torch()
  fn = torch.nn.functional.scaled_dot_product_attention
  bias = bias_of(encoding, shape)
  if bias is None:
    return _torch(torch, functools.partial(fn, is_causal=True), encoding, shape, phase, '')
  hidden = jnp.arange(shape.length)[None, :] > jnp.arange(shape.length)[:, None]
  mask = np.array(jnp.where(hidden[None, None], -jnp.inf, bias))
  mask = torch.from_numpy(mask).to(getattr(torch, shape.dtype))
  note = f'its biases are given as a mask, {mask.nbytes / 1e6:.0f} MB, that gets no gradient'
  return _torch(torch, functools.partial(fn, attn_mask=mask), encoding, shape, phase, note)


def _flex(encoding, shape, phase) -> turns.Ready:
  torch = load_torch()
  from torch.nn.attention import flex_attention

  if phase == attention.BACKWARD:
    raise turns.Refused('FlexAttention has no backward pass on a CPU')
  torch._dynamo.reset()  # else it gives up compiling after a few comparisons
  score, note = _score(torch, encoding, shape)
  causal = flex_attention.create_block_mask(
      lambda b, n, i, j: i >= j, None, None, shape.length, shape.length, device='cpu'
  )
  run = torch.compile(flex_attention.flex_attention, dynamic=False)
  attend = functools.partial(run, score_mod=score, block_mask=causal)
  return _torch(torch, attend, encoding, shape, phase, note)


def _score(torch, encoding, shape) -> tuple[Callable | None, str]:
  """Writes the bias as FlexAttention takes it: from a slope of each head or a table by distance."""
  if encoding.bias is None:
    return None, ''
  if not encoding.by_distance:
    raise turns.Refused(f'{encoding} is no function of the distance alone, as its score_mod is')
  last = np.array(bias_of(encoding, shape)[0, :, -1, ::-1])  # by distance, [N, T]
  slopes = last[:, 1:2] - last[:, :1] if shape.length > 1 else np.zeros_like(last)
  if np.allclose(last, slopes * np.arange(shape.length)[None], rtol=1e-5, atol=1e-6):
    slopes = torch.from_numpy(slopes[:, 0].copy())
    return lambda s, b, n, i, j: s + slopes[n] * (i - j), 'from slopes'
  table = torch.from_numpy(np.ascontiguousarray(last))
  return lambda s, b, n, i, j: s + table[n, i - j], 'from a table of distances'
