# SPDX-License-Identifier: Apache-2.0
"""What the TPU's own compiler makes of our programs, without a TPU; the same lowered for CUDA."""

from concurrent import futures
import functools
import json
import pathlib
import subprocess
import sys

from flax import nnx
import jax
from jax.experimental import topologies
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.bench import hlo
from experiments.bench import topology
import pe_jax
from pe_jax import kernels
from pe_jax import Mask
from pe_jax import transformer
from tests import layers_on_a_tpu

FAMILIES = {  # one encoding for each hook
    'embed': pe_jax.sinusoidal(),
    'query and key': pe_jax.rope(),
    'bias of distance': pe_jax.t5(),
    'bias of content and value': pe_jax.shaw(),
    'place': pe_jax.fox(),
    'logits': pe_jax.cope(),
}
each_family = pytest.mark.parametrize('encoding', FAMILIES.values(), ids=FAMILIES)


@pytest.fixture(scope='module')
def chips():
  """A function from a slice to its chips, which exist for the TPU's compiler only."""
  pytest.importorskip('libtpu', reason='the TPU compiler is not installed: pip install jax[tpu]')
  with pytest.MonkeyPatch.context() as patch:
    for name, value in topology.NO_CLOUD.items():
      patch.setenv(name, value)

    yield lambda name: topologies.get_topology_desc(platform='tpu', topology_name=name).devices


@pytest.fixture(scope='module')
def v5e(chips):
  return jax.sharding.SingleDeviceSharding(chips('v5e:2x2')[0])


def compile_for(sharding, fn, *args):
  place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
  return jax.jit(fn).lower(*jax.tree.map(place, args)).compile()


def count(program, kernel):
  """How often the program runs a Pallas kernel whose name begins so."""
  calls = hlo.read(program.as_text()).kernels
  return sum(times for name, times in calls.items() if name.startswith(kernel))


def cycles(program):
  """What the compiler estimates for all but Pallas kernels."""
  found = hlo.read(program.as_text()).cycles
  assert found > 0
  return found


# --- Whole training steps ------------------------------------------------------------------------


def training_step(encoding):
  """A step of a small decoder, and the shapes of what it takes."""
  config = transformer.Config(vocab=128, layers=2, model=256, heads=2, dtype='bfloat16')
  optimizer = optax.adamw(1e-3)

  def make():
    model = transformer.Decoder(config, encoding, rngs=nnx.Rngs(jax.random.key(0)))
    return model, optimizer.init(model)

  def loss(model, tokens):
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

  def step(model, state, tokens):
    value, gradient = jax.value_and_grad(loss)(model, tokens)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value

  model, state = jax.eval_shape(make)
  return step, (model, state, jax.ShapeDtypeStruct((1, 129), jnp.int32))


@each_family
def test_a_training_step_compiles_for_a_tpu(v5e, encoding):
  step, args = training_step(encoding)
  assert cycles(compile_for(v5e, step, *args)) > 0


@each_family
def test_a_training_step_lowers_for_cuda(encoding):
  step, args = training_step(encoding)
  flat, tree = jax.tree.flatten(args)
  exported = jax.export.export(
      jax.jit(lambda *leaves: jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))),
      platforms=['cuda'],
  )(*flat)
  assert exported.platforms == ('cuda',)


# --- Attention -----------------------------------------------------------------------------------


def attention_and_back(encoding, mask, kernel, tokens=256, heads=2):
  dims = pe_jax.Dims(model=128 * heads, heads=heads)
  params = encoding.init(jax.random.key(0), dims)

  def loss(q, k, v, params):
    positions = jnp.arange(q.shape[1])
    out = pe_jax.attend(
        q, k, v, positions, positions, encoding=encoding, params=params, mask=mask, kernel=kernel
    )
    return jnp.square(out.astype(jnp.float32)).sum()

  x = jax.ShapeDtypeStruct((1, tokens, heads, 128), jnp.bfloat16)
  return jax.grad(loss, argnums=(0, 1, 2, 3)), (x, x, x, params)


@pytest.mark.parametrize('encoding', [pe_jax.rope(), pe_jax.t5(), pe_jax.shaw()], ids=repr)
def test_attention_and_its_gradients_lower_for_cuda(encoding):
  fn, args = attention_and_back(encoding, Mask(causal=True), None)
  assert jax.export.export(jax.jit(fn), platforms=['cuda'])(*args).platforms == ('cuda',)


@pytest.mark.parametrize('kernel', [kernels.dense, kernels.blockwise], ids=lambda fn: fn.__name__)
def test_attention_and_its_gradients_compile_for_a_tpu(v5e, kernel):
  fn, args = attention_and_back(pe_jax.t5(), Mask(causal=True), kernel)
  assert cycles(compile_for(v5e, fn, *args)) > 0


def test_a_tpu_takes_splash_attention_where_nothing_is_added_to_the_logits(v5e):
  tokens = 2048
  segments = jnp.ones(tokens, jnp.int32)
  mask = Mask(causal=True, window=100, q_segments=segments, k_segments=segments)
  fn, args = attention_and_back(pe_jax.rope(), mask, None, tokens)
  program = compile_for(v5e, fn, *args)
  # The backward pass asks for the forward kernel once more, and XLA runs it once.
  assert all(count(program, f'splash_mha_{part}') == 1 for part in ('fwd', 'dq', 'dkv'))
  assert program.memory_analysis().temp_size_in_bytes < 4 * 2 * tokens**2 / 8


def test_a_program_that_xla_splits_among_tpus_has_no_kernel_that_it_cannot_split(chips, v5e):
  fn, args = attention_and_back(pe_jax.alibi(), Mask(causal=True), None)
  assert count(compile_for(v5e, fn, *args), 'pe_jax_flash') > 0
  mesh = jax.sharding.Mesh(np.array(chips('v5e:2x2')[:2]), ('heads',))
  split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, 'heads'))
  assert count(compile_for(split, fn, *args), '') == 0


BIASES = [pe_jax.alibi_learned(), pe_jax.t5(), pe_jax.fire()]


@pytest.mark.parametrize('name', ['v5e:2x2', 'v6e:2x2'])
@pytest.mark.parametrize(
    'encoding, tokens',
    [
        (pe_jax.alibi_learned(), 2048),
        (pe_jax.t5(), 32768),  # at positions that do not count by one, a tile of it is large
        (pe_jax.fire(), 4096),
    ],
    ids=repr,
)
def test_attention_with_a_trained_bias_has_no_array_of_all_logits(chips, encoding, tokens, name):
  fn, args = attention_and_back(encoding, Mask(causal=True), None, tokens)
  program = compile_for(jax.sharding.SingleDeviceSharding(chips(name)[0]), fn, *args)
  assert count(program, 'pe_jax_flash') > 0
  assert program.memory_analysis().temp_size_in_bytes < 4 * 2 * tokens**2 / 8


@pytest.mark.parametrize('encoding', BIASES, ids=repr)
def test_a_long_row_with_a_trained_bias_fits_a_chip(v5e, encoding):
  fn, args = attention_and_back(encoding, Mask(causal=True), None, tokens=32768, heads=16)
  memory = compile_for(v5e, fn, *args).memory_analysis()
  needs = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  assert needs < 16e9  # of which the logits of one head alone are 4.3e9


# --- The cost of position ------------------------------------------------------------------------

def layer_cycles(chip, encoding):
  fn, args = layers_on_a_tpu.layer(encoding, kernels.dense)
  return cycles(compile_for(chip, fn, *args))


def test_position_is_free_in_a_tpu_layer(v5e):
  encodings = [pe_jax.rope(), pe_jax.rope(layout='interleaved'), pe_jax.alibi()]
  with futures.ThreadPoolExecutor(2) as pool:  # the compiler runs beside itself
    none, *others = pool.map(functools.partial(layer_cycles, v5e), [pe_jax.none(), *encodings])
  ratios = {encoding: found / none for encoding, found in zip(encodings, others, strict=True)}
  assert max(ratios.values()) <= 1.05, ratios


def test_biases_are_free_with_the_kernels_of_a_tpu():
  pytest.importorskip('libtpu', reason='the TPU compiler is not installed: pip install jax[tpu]')
  ended = subprocess.run(
      [sys.executable, '-m', 'tests.layers_on_a_tpu'],
      cwd=pathlib.Path(__file__).parents[1],
      capture_output=True,
      text=True,
      check=True,
  )
  none, alibi, t5 = json.loads(ended.stdout.splitlines()[-1]).values()
  assert alibi <= 1.05 * none, ended.stdout
  assert t5 <= 1.05 * none, ended.stdout
