# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of q and k, ours and those of other libraries, beside a copy of q and k.

Bytes are the compiler's own count over the least that must be moved: the input, the output and one
pair of tables.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import attention
from experiments.bench import peers
from experiments.bench import turns
import pe_jax

COPY = 'copy'
_BASE = 1e4
_OURS = {'half': pe_jax.rotate_half, 'interleaved': pe_jax.rotate_interleaved}


def sides(shape: attention.Shape, *, with_peers: bool) -> list[turns.Side]:
  """Makes the sides: a copy, both layouts from tables and from positions, and the peers."""
  made = [turns.Side(COPY, 'copy', functools.partial(_copy, shape))]
  for name, rotate in _OURS.items():
    for source, make in {'tables given': _tables, 'from positions': _positions}.items():
      run = functools.partial(make, rotate, shape)
      like = None if make is _tables else f'{name}, tables given'
      side = turns.Side(f'{name}, {source}', 'rotation', run, over={COPY: COPY}, like=like)
      made.append(side)
  for name, (make, layout) in (_PEERS if with_peers else {}).items():
    like = f'{layout}, tables given'
    over = {COPY: COPY, 'pe_jax': like}
    made.append(turns.Side(name, 'peer', functools.partial(make, shape), over=over, like=like))
  return made


def _inputs(shape: attention.Shape) -> tuple[jax.Array, jax.Array]:
  return tuple(jax.random.normal(jax.random.key(0), (2, *shape.queries), shape.dtype))


def _inv_freq(shape: attention.Shape) -> jax.Array:
  return jnp.asarray(pe_jax.scaling.inverse_frequencies(shape.head_dim, base=_BASE), jnp.float32)


def _both(rotate: Callable) -> Callable:
  """Makes a function of q and k of one that rotates an array."""
  return lambda q, k, *args: (rotate(q, *args), rotate(k, *args))


def _compiled(fn: Callable, shape: attention.Shape, *args) -> turns.Ready:
  made = turns.compiled(fn, *_inputs(shape), *args, outputs=list)
  cos_and_sin = 4 * shape.length * shape.head_dim
  least = 2 * sum(x.nbytes for x in _inputs(shape)) + cos_and_sin
  made.facts['bytes_over_least'] = made.facts['bytes_accessed'] / least
  return made


def _copy(shape) -> turns.Ready:
  return _compiled(_both(lambda x: x * jnp.asarray(1.5, x.dtype)), shape)


def _tables(rotate, shape) -> turns.Ready:
  tables = pe_jax.rope_tables(jnp.arange(shape.length), _inv_freq(shape))
  return _compiled(_both(rotate), shape, *tables)


def _positions(rotate, shape) -> turns.Ready:
  turn = functools.partial(pe_jax.apply_rope, rotate=rotate)
  return _compiled(_both(turn), shape, jnp.arange(shape.length), _inv_freq(shape))


# --- Other libraries -----------------------------------------------------------------------------


def _torch(rotate: Callable, shape, note: str) -> turns.Ready:
  """Makes a side of rotate(q, k) on arrays [B, N, T, H]."""
  torch = peers.load_torch()
  q, k = (peers.to_torch(torch, x) for x in _inputs(shape))

  def run():
    with torch.no_grad():
      return rotate(q, k)

  return turns.Ready(run, lambda found: [peers.from_torch(x) for x in found], note=note)


def _hugging_face(shape, *, compiled: bool) -> turns.Ready:
  torch = peers.load_torch()
  from transformers.models.llama import modeling_llama

  # Each angle twice, [B, T, H], in the dtype of q, as transformers hands them to its layers.
  tables = pe_jax.rope_tables(jnp.arange(shape.length), _inv_freq(shape))
  doubled = (torch.from_numpy(np.concatenate([table, table], axis=-1))[None] for table in tables)
  cos, sin = (table.to(getattr(torch, shape.dtype)) for table in doubled)
  rotate = modeling_llama.apply_rotary_pos_emb
  if compiled:
    torch._dynamo.reset()
    rotate = torch.compile(rotate, dynamic=False)
  return _torch(lambda q, k: rotate(q, k, cos, sin), shape, 'tables given')


def _rotary_embedding_torch(shape) -> turns.Ready:
  peers.load_torch()
  import rotary_embedding_torch

  rope = rotary_embedding_torch.RotaryEmbedding(dim=shape.head_dim, theta=_BASE)
  turn = rope.rotate_queries_or_keys
  return _torch(lambda q, k: (turn(q), turn(k)), shape, 'angles cached by the module')


def _x_transformers(shape) -> turns.Ready:
  peers.load_torch()
  from x_transformers import x_transformers

  rope = x_transformers.RotaryEmbedding(shape.head_dim, base=_BASE)
  angles, scale = rope.forward_from_seq_len(shape.length)
  turn = functools.partial(x_transformers.apply_rotary_pos_emb, freqs=angles, scale=scale)
  return _torch(lambda q, k: (turn(q), turn(k)), shape, 'angles given')


_PEERS = {
    'HF apply_rotary_pos_emb': (functools.partial(_hugging_face, compiled=False), 'half'),
    'HF under torch.compile': (functools.partial(_hugging_face, compiled=True), 'half'),
    'rotary-embedding-torch': (_rotary_embedding_torch, 'interleaved'),
    'x-transformers': (_x_transformers, 'interleaved'),
}
