# SPDX-License-Identifier: Apache-2.0
"""What the benchmark reads out of the TPU compiler's texts, without that compiler."""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import pytest

from experiments import errors
from experiments.bench import attention
from experiments.bench import bundles
from experiments.bench import hlo
from experiments.bench import topology
import pe_jax

ANALYSIS = """Schedule analysis:
\ttotal scheduled bundles:    2469
\tempty scheduled bundles:    14
\tnon empty scheduled bundles: 2455
\t2455.00 scheduled bundles (100.00%): %flash.1 = (f32[1,2,2048,128]) custom-call(%copy)
"""


def test_reads_the_bundles_of_one_kernel(tmp_path):
  last = '71-schedule-analysis_final_bundles.txt'
  (tmp_path / f'1796068104062171568-flash.1-{last}').write_text(ANALYSIS)
  (tmp_path / f'1796068104062171569-flash.12-{last}').write_text(ANALYSIS.replace('2469', '7'))
  (tmp_path / '1796068104062171568-flash.1-70-final_bundles.txt').write_text('of no use')
  assert bundles.scheduled(tmp_path, 'flash.1') == 2469
  assert bundles.scheduled(tmp_path, 'flash.12') == 7
  with pytest.raises(ValueError, match='has 0 schedules of the kernel flash.2'):
    bundles.scheduled(tmp_path, 'flash.2')
  (tmp_path / f'1796068104062171599-flash.1-{last}').write_text(ANALYSIS.replace('2469', '8'))
  with pytest.raises(ValueError, match='has 2 schedules of the kernel flash.1'):
    bundles.scheduled(tmp_path, 'flash.1')


@pytest.mark.parametrize('queries, keys', [(1, 1), (4, 4), (2, 8), (8, 2), (3, 5)])
def test_counts_the_tiles_that_a_causal_mask_leaves(queries, keys):
  seen = jnp.tril(jnp.ones((120, 120), bool))
  tiles = seen.reshape(queries, 120 // queries, keys, 120 // keys).any(axis=(1, 3))
  assert bundles.causal_steps((3, 2, queries, keys)) == 6 * int(tiles.sum())
  assert bundles.causal_steps((5, 7)) == 35


def test_finds_the_grids_of_kernels_wherever_they_are_called():
  def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]

  def call(x):
    return pl.pallas_call(copy, out_shape=x, grid=(2, 3), name='copy_all', interpret=True)(x)

  def program(x):
    once = jax.jit(call)(x)
    return jax.lax.cond(x[0, 0] > 0, lambda y: jax.lax.map(call, y[None])[0], lambda y: y, once)

  found = list(bundles.grids(jax.make_jaxpr(program)(jnp.ones((8, 128))).jaxpr))
  assert found[0] == ('copy_all', (2, 3)) and len(found) == 2


LOOPS = """HloModule jit_run

%fused (p: f32[8]) -> f32[8] {
  ROOT %a = f32[8] add(%p, %p)
}

%inner_body (p: s32[]) -> s32[] {
  %flash.2 = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call"
  %x = f32[8] add(%p, %p), backend_config={"window_config":{"estimated_cycles":"5"}}
}

%inner_until (p: s32[]) -> pred[] {
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %most = s32[]{:T(128)} constant(4)
  ROOT %less = pred[]{:T(512)} compare(%i, %most), direction=LT, backend_config={}
}

%outer_body (p: s32[]) -> s32[] {
  %x = f32[8] fusion(%p), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"100"}
  %while.1 = s32[] while(%p), condition=%inner_until, body=%inner_body, metadata={}
}

%outer_until (p: s32[]) -> pred[] {
  %most = s32[]{:T(128)} OUTER
  ROOT %less = pred[]{:T(512)} compare(%p, %most), direction=LT
}

ENTRY %main (q: s32[]) -> s32[] {
  %flash.1 = f32[8]{0} custom-call(%q), custom_call_target="tpu_custom_call"
  %y = f32[8] add(%q, %q), backend_config={"estimated_cycles":"1000"}
  ROOT %while.2 = s32[] while(%q), condition=%outer_until, body=%outer_body
}
"""


def test_cycles_count_every_turn_of_a_loop():
  found = hlo.read(LOOPS.replace('OUTER', 'constant(3)'))
  assert found == hlo.Found(1000 + 3 * (100 + 4 * 5), {'flash.1': 1, 'flash.2': 12}, 0)


def test_a_loop_of_unknown_length_is_told():
  found = hlo.read(LOOPS.replace('OUTER', 'get-tuple-element(%p), index=1'))
  assert found.open_loops == 1


def test_of_a_conditional_the_last_branch_counts():
  branches = 'branch_computations={%outer_body, %inner_body}'
  text = LOOPS.replace('while(%q), condition=%outer_until, body=%outer_body', 'conditional(%q), ')
  found = hlo.read(text.replace('conditional(%q), ', f'conditional(%q, %q, %q), {branches}'))
  assert found == hlo.Found(1000 + 5, {'flash.1': 1, 'flash.2': 1}, 0)


def test_what_a_call_runs_counts():
  text = LOOPS.replace('while(%q), condition=%outer_until, body=%outer_body', 'call(%q), CALLED')
  found = hlo.read(text.replace('CALLED', 'to_apply=%inner_body'))
  assert found == hlo.Found(1000 + 5, {'flash.1': 1, 'flash.2': 1}, 0)


def test_a_text_that_is_no_program_is_told():
  with pytest.raises(ValueError, match='no ENTRY'):
    hlo.read('junk')


def test_a_layer_has_the_gradients_of_its_weights_and_of_the_encoding():
  shape = attention.Shape(2, 4, 2, 4, 'float32')
  encoding = pe_jax.t5()
  fn, make = attention.program(encoding, 'dense', shape, attention.LAYER)
  start, *args = make()
  out, gradients = jax.jit(fn)(start, *args)
  assert out.shape == start.shape == (2, 4, 8)
  assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, tuple(args))
  assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_an_unknown_chip_is_told(tmp_path):
  with pytest.raises(errors.UserError, match='tpu:v9 is unknown: give tpu:v5e or tpu:v6e'):
    topology.Chip('tpu:v9', tmp_path)


def test_a_missing_compiler_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(topology.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match=r"pip install -e '.\[tpu\]'"):
    topology.Chip('tpu:v5e', tmp_path)
