# SPDX-License-Identifier: Apache-2.0
"""Which kernel is taken where none is given: by the call, and by what the program is for."""

import functools
import types

import jax
from jax._src.cudnn import fused_attention_stablehlo
import jax.numpy as jnp
import pytest

import pe_jax
from pe_jax import Mask
from pe_jax.kernels import _flash_tpu

CAUSAL = Mask(causal=True)
SEGMENTS = jnp.ones(256, jnp.int32)


def program(encoding, platform, *, tokens=256, dtype='bfloat16', **options):
  """The text of attention and its gradients, as lowered for a platform that need not be here."""
  dims = pe_jax.Dims(model=256, heads=2)
  params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))

  def loss(q, k, v, params):
    positions = jnp.arange(tokens)
    given = {'encoding': encoding, 'params': params, 'mask': CAUSAL, **options}
    return pe_jax.attend(q, k, v, positions, positions, **given).astype(jnp.float32).sum()

  x = jax.ShapeDtypeStruct((1, tokens, 2, 128), dtype)
  exported = jax.export.export(
      jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))),
      platforms=[platform],
      disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name) for name in FUSED],
  )
  return exported(x, x, x, params).mlir_module()


FUSED = ('tpu_custom_call', '__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward')


TILES_ON_A_CPU = {
    'a bias, few logits': (pe_jax.alibi(), 128, False),
    'a bias, many logits': (pe_jax.alibi(), 256, True),
    'no bias, many logits': (pe_jax.rope(), 256, True),
    'whole rows': (pe_jax.cope(), 256, False),
    'whole rows in a part': (pe_jax.compose(pe_jax.rope(), pe_jax.cope()), 256, False),
}


@pytest.mark.parametrize('encoding, tokens, tiled', TILES_ON_A_CPU.values(), ids=TILES_ON_A_CPU)
def test_a_cpu_runs_short_and_whole_rows_dense_and_long_ones_tiled(encoding, tokens, tiled):
  text = program(encoding, 'cpu', tokens=tokens)
  assert 'stablehlo.dot_general' in text
  assert ('stablehlo.while' in text) == tiled  # a loop over tiles


ON_A_TPU = {
    'none': (pe_jax.none(), {}, 'splash_mha'),
    'a window': (pe_jax.rope(), {'mask': Mask(causal=True, window=9)}, 'splash_mha'),
    'segments': (
        pe_jax.rope(),
        {'mask': Mask(q_segments=SEGMENTS, k_segments=SEGMENTS)},
        'splash_mha',
    ),
    'a bias': (pe_jax.alibi(), {}, 'pe_jax_flash'),
    'a trained bias and a rotation': (
        pe_jax.compose(pe_jax.rope(), pe_jax.alibi_learned()),
        {},
        'pe_jax_flash',
    ),
    'a bias by the pair': (pe_jax.fire(), {}, 'pe_jax_flash'),
    'few logits': (pe_jax.alibi(), {'tokens': 128}, None),
    'softcap': (pe_jax.alibi(), {'softcap': 5.0}, None),
    'a bias of content': (pe_jax.shaw(), {}, None),
    'any mask': (pe_jax.rope(), {'mask': Mask(dense=jnp.ones((256, 256), bool))}, None),
    'whole rows': (pe_jax.cope(), {}, None),
}


@pytest.mark.parametrize('encoding, options, name', ON_A_TPU.values(), ids=ON_A_TPU)
def test_a_tpu_runs_its_own_kernels_where_they_can(encoding, options, name):
  text = program(encoding, 'tpu', **options)
  assert name in text if name else 'tpu_custom_call' not in text


def test_a_tpu_goes_back_by_tiles_where_gradients_to_keys_exceed_its_fast_memory(monkeypatch):
  assert 'pe_jax_flash_distance_backward' in program(pe_jax.alibi(), 'tpu')
  monkeypatch.setattr(_flash_tpu, '_MOST_FAST_MEMORY', 0)
  text = program(pe_jax.alibi(), 'tpu', tokens=768)  # traced by no other test
  assert 'pe_jax_flash_distance' in text and 'backward' not in text


def test_an_nvidia_gpu_runs_cudnn_where_it_is_found(monkeypatch):
  assert '__cudnn' not in program(pe_jax.rope(), 'cuda')  # this machine has none
  found = types.SimpleNamespace(cudnn_get_version=lambda: 91100)
  monkeypatch.setattr(fused_attention_stablehlo, 'cuda_versions', found)
  fresh = functools.partial(program, tokens=640)  # traced by no other test
  text = fresh(pe_jax.rope(), 'cuda')
  assert '__cudnn$fmhaSoftmax' in text and '__cudnn$fmhaSoftmaxBackward' in text
  segments = jnp.ones(640, jnp.int32)
  for encoding, options in [
      (pe_jax.alibi(), {}),
      (pe_jax.rope(), {'dtype': 'float32'}),
      (pe_jax.rope(), {'mask': Mask(q_segments=segments, k_segments=segments)}),
      (pe_jax.shaw(), {}),
  ]:
    assert '__cudnn' not in fresh(encoding, 'cuda', **options)
  assert '__cudnn' not in fresh(pe_jax.rope(), 'cpu')
