# SPDX-License-Identifier: Apache-2.0
"""What lessons on positional encoding claim, checked: each with and without jit, under vmap."""

import contextlib

import chex
import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import Mask

WIDTH = 16
FREQUENCIES = pe_jax.sinusoidal_frequencies(WIDTH)


def encode(position):
  """PE(p), one position."""
  return pe_jax.sinusoidal_embedding(position[None], FREQUENCIES, width=WIDTH)[0]


def shift(k):
  return pe_jax.sinusoidal_shift(k, WIDTH)


def rotation(position):
  """R_p as a matrix: its columns are the rotated unit vectors."""
  inv_freq, _ = pe_jax.scaling.default()(width=WIDTH, base=1e4)
  units = jnp.eye(WIDTH)[:, None, None, :]
  positions = jnp.broadcast_to(position, (WIDTH, 1))
  return pe_jax.apply_rope(units, positions, inv_freq)[:, 0, 0, :].T


def self_attention(params, x, encoding=pe_jax.none(), mask=None):
  """Multi-head self-attention with projections, x [T, D]."""
  q, k, v = (jnp.einsum('td,dnh->tnh', x, params[name]) for name in 'qkv')
  positions = jnp.arange(x.shape[0])
  out = pe_jax.attend(q, k, v, positions, positions, encoding=encoding, params={}, mask=mask)
  return jnp.einsum('tnh,nhd->td', out, params['o'])


def projections(key, heads=2, head_dim=8):
  keys = jax.random.split(key, 4)
  shapes = {name: (WIDTH, heads, head_dim) for name in 'qkv'} | {'o': (heads, head_dim, WIDTH)}
  return {name: jax.random.normal(key, shapes[name]) / 4 for name, key in zip(shapes, keys)}


class LessonsTest(chex.TestCase):

  def setUp(self):
    super().setUp()
    self.positions = jnp.array([0.0, 1.0, 2.5, 7.0, 40.0, 333.0])
    self.params = projections(jax.random.key(0))
    self.x = jax.random.normal(jax.random.key(1), (3, 6, WIDTH))

  def vmapped(self, fn):
    """vmap of fn, with or without jit; without it, jitted pe_jax functions are opened too."""
    run = self.variant(jax.vmap(fn))
    eager = self.variant.type == chex.ChexVariantType.WITHOUT_JIT

    def call(*args):
      with jax.disable_jit() if eager else contextlib.nullcontext():
        return run(*args)

    return call

  @chex.variants(with_jit=True, without_jit=True)
  def test_a_shift_is_a_matrix_that_depends_on_the_shift_alone(self):
    for k in (-2.0, 0.0, 1.0, 3.5, 100.0):
      moved = self.vmapped(lambda p, k=k: encode(p + k))(self.positions)
      turned = self.vmapped(lambda p, k=k: shift(k) @ encode(p))(self.positions)
      np.testing.assert_allclose(moved, turned, atol=2e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_the_matrix_is_block_diagonal_with_plane_rotations(self):
    matrices = np.asarray(self.vmapped(shift)(self.positions), np.float64)
    w = 1e4 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    for k, matrix in zip(np.asarray(self.positions, np.float64), matrices, strict=True):
      want = np.zeros((WIDTH, WIDTH))
      for i in range(WIDTH // 2):
        c, s = np.cos(w[i] * k), np.sin(w[i] * k)
        want[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, s], [-s, c]]
      np.testing.assert_allclose(matrix, want, atol=4e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_two_encodings_overlap_by_their_distance_alone(self):
    for k in (0, 1, 9):
      dots = self.vmapped(lambda p, k=k: encode(p) @ encode(p + k))(self.positions)
      want = sum(np.cos(1e4 ** (-2 * i / WIDTH) * k) for i in range(WIDTH // 2))
      np.testing.assert_allclose(dots, want, atol=1e-4)

  @chex.variants(with_jit=True, without_jit=True)
  def test_wavelengths_are_geometric_from_two_pi(self):
    bases = jnp.array([100.0, 1e4])
    waves = self.vmapped(lambda base: pe_jax.sinusoidal_wavelengths(WIDTH, base))(bases)
    np.testing.assert_allclose(waves[:, 0], 2 * np.pi, rtol=1e-6)
    steps = np.broadcast_to((np.asarray(bases) ** (2 / WIDTH))[:, None], (2, WIDTH // 2 - 1))
    np.testing.assert_allclose(waves[:, 1:] / waves[:, :-1], steps, rtol=1e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_rotated_scores_depend_on_the_difference(self):
    q, k = jax.random.normal(jax.random.key(2), (2, WIDTH))
    for step in (0.0, 1.0, 5.0):
      score = self.vmapped(lambda m, s=step: (rotation(m) @ q) @ (rotation(m + s) @ k))
      scores = score(self.positions)
      np.testing.assert_allclose(scores, np.full(scores.shape, scores[0]), atol=1e-3)

  @chex.variants(with_jit=True, without_jit=True)
  def test_rotations_form_a_group(self):
    product = self.vmapped(lambda m: rotation(m).T @ rotation(jnp.float32(7)))(self.positions)
    single = self.vmapped(lambda m: rotation(7 - m))(self.positions)
    np.testing.assert_allclose(product, single, atol=5e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_attention_alone_is_blind_to_order(self):
    order = jnp.array([3, 0, 5, 1, 4, 2])
    out = self.vmapped(lambda x: self_attention(self.params, x))(self.x)
    moved = self.vmapped(lambda x: self_attention(self.params, x[order]))(self.x)
    np.testing.assert_allclose(moved, out[:, order], atol=1e-5)
    np.testing.assert_allclose(moved.mean(1), out.mean(1), atol=1e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_a_causal_mask_or_an_absolute_encoding_is_not(self):
    order = jnp.array([3, 0, 5, 1, 4, 2])
    positions = jnp.arange(6)
    table = pe_jax.learned(length=6).init(jax.random.key(3), pe_jax.Dims(model=WIDTH, heads=2))

    def causal(x):
      return self_attention(self.params, x, mask=Mask(causal=True))

    def sinusoidal(x):
      return self_attention(self.params, pe_jax.sinusoidal().embed({}, x, positions))

    def learned(x):
      return self_attention(self.params, pe_jax.learned(length=6).embed(table, x, positions))

    for model in (causal, sinusoidal, learned):
      out = self.vmapped(model)(self.x)
      moved = self.vmapped(lambda x, model=model: model(x[order]))(self.x)
      assert np.abs(moved - out[:, order]).max() > 1e-2
      assert np.abs(moved.mean(1) - out.mean(1)).max() > 1e-3

  @chex.variants(with_jit=True, without_jit=True)
  def test_an_absolute_encoding_tells_a_repeated_token_apart(self):
    same = jnp.broadcast_to(self.x[:, :1], self.x.shape)
    positions = jnp.arange(6)

    def gap(embed):
      out = self.vmapped(lambda x: self_attention(self.params, embed(x)))(same)
      return np.abs(out[:, 4] - out[:, 1]).max()

    assert gap(lambda x: x) < 1e-5
    assert gap(lambda x: pe_jax.sinusoidal().embed({}, x, positions)) > 1e-2

  @chex.variants(with_jit=True, without_jit=True)
  def test_projections_built_from_the_shift_attend_three_back(self):
    sharp = 50.0

    def weights(x):  # three tokens stand before the first query, so each has one three back
      q = (x[3:] @ shift(-3.0).T * sharp)[:, None]  # W_Q = M_(-3): the query asks for PE(p - 3)
      k = x[:, None]
      q_pos, k_pos = jnp.arange(3, x.shape[0]), jnp.arange(x.shape[0])
      return pe_jax.attention_weights(q, k, k, q_pos, k_pos, encoding=pe_jax.none(), params={})[0]

    rows = jax.vmap(encode)(jnp.arange(40.0))[None]
    found = np.asarray(self.vmapped(weights)(rows)[0]).argmax(-1)
    assert found.tolist() == list(range(37))

  @chex.variants(with_jit=True, without_jit=True)
  def test_scaled_embeddings_outweigh_the_position(self):
    width, vocab = 512, 50
    table = jax.random.normal(jax.random.key(4), (vocab, width)) * width**-0.5
    position = pe_jax.sinusoidal_embedding(
        jnp.arange(vocab), pe_jax.sinusoidal_frequencies(width), width=width
    )
    norm = self.vmapped(jnp.linalg.norm)
    np.testing.assert_allclose(norm(position), np.sqrt(width / 2), rtol=1e-4)
    assert (norm(table * np.sqrt(width)) > norm(position)).all()
    assert (norm(table) < norm(position)).all()

  @chex.variants(with_jit=True, without_jit=True)
  def test_rotation_never_touches_the_values(self):
    same = jnp.broadcast_to(self.x[:, :1], self.x.shape)  # equal values: any mixture is that value
    out = self.vmapped(lambda x: self_attention(self.params, x, pe_jax.rope()))(same)
    plain = jnp.einsum('btd,dnh,nhe->bte', same, self.params['v'], self.params['o'])
    np.testing.assert_allclose(out, plain, atol=1e-5)
