# SPDX-License-Identifier: Apache-2.0
"""Two checkpoints side by side: configs key by key, weights tensor by tensor."""

import json
import math
import os
import pathlib
import subprocess
import sys

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich import console as rich_console
from safetensors.numpy import save_file

from experiments.rope import checkpoints
from experiments.rope import facts as rope_facts
from experiments.rope import output as rope_output
from experiments.rope import pair as rope_pair
from experiments.rope import weights
import pe_jax
from pe_jax import transformer

SIZES = transformer.Config(vocab=64, layers=1, model=32, heads=4)
CONFIG = {
    'hidden_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 2, 'model_type': 'llama',
    'max_position_embeddings': 64, 'rope_theta': 1e4,
}
ONE_RULE = rope_facts.Asked(rules=('ntk',))


@pytest.fixture(scope='module')
def trained():
  """Weights after 10 and 20 steps from one seed, and after 10 from another, by name."""
  optimizer = optax.adamw(1e-3)

  def loss(model, tokens):
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

  @jax.jit
  def start(seed):
    model = transformer.Decoder(SIZES, pe_jax.rope(), rngs=nnx.Rngs(jax.random.key(seed)))
    return model, optimizer.init(model)

  def step(carry, key):
    model, state = carry
    gradient = jax.grad(loss)(model, jax.random.randint(key, (4, 17), 0, 64))
    updates, state = optimizer.update(gradient, state, model)
    return (optax.apply_updates(model, updates), state), None

  @jax.jit
  def ten_steps(carry, key):
    return jax.lax.scan(step, carry, jax.random.split(key, 10))[0]

  def named(carry):
    leaves = jax.tree.leaves_with_path(nnx.to_pure_dict(nnx.state(carry[0])))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

  first = ten_steps(start(0), jax.random.key(1))
  longer = ten_steps(first, jax.random.key(2))
  other = ten_steps(start(1), jax.random.key(1))
  return {'base': named(first), 'longer': named(longer), 'other seed': named(other)}


@pytest.fixture
def make(tmp_path):
  """Returns a function that writes a checkpoint and returns its directory."""

  def write(name, tensors=None, config=CONFIG, shards=1):
    directory = tmp_path / name
    directory.mkdir()
    (directory / 'config.json').write_text(json.dumps(config))
    if tensors is None:
      return directory
    if shards == 1:
      save_file(tensors, directory / 'model.safetensors')
      return directory
    names = sorted(tensors)
    files = {name: f'model-{i % shards}.safetensors' for i, name in enumerate(names)}
    for file in set(files.values()):
      save_file({n: tensors[n] for n in names if files[n] == file}, directory / file)
    index = {'metadata': {}, 'weight_map': files}
    (directory / 'model.safetensors.index.json').write_text(json.dumps(index))
    return directory

  return write


def compare(a, b):
  return weights.compare(weights.find(a), weights.find(b), lambda values: None)


def read(a, b):
  return rope_pair.read(str(a), str(b), ONE_RULE, rich_console.Console(quiet=True))


# --- Verdicts ------------------------------------------------------------------------------------


def test_a_pair_that_differs_only_in_rope(make, trained):
  scaled = CONFIG | {
      'max_position_embeddings': 256,
      'rope_scaling': {'rope_type': 'linear', 'factor': 4.0},
      'transformers_version': '5.0',
  }
  pair = read(make('a', trained['base']), make('b', trained['base'], scaled))
  assert pair.weights.verdict == 'same weights'
  assert pair.verdicts[0] == (
      'Configs: they differ only in RoPE settings: max_position_embeddings, '
      'rope_scaling.factor, rope_scaling.rope_type.'
  )
  [(a, b)] = pair.layers
  assert a['length'] == b['length'] == 256
  np.testing.assert_allclose(
      b['channels']['wavelength'], 4 * np.array(a['channels']['wavelength']), rtol=1e-12
  )


def test_a_model_that_was_trained_ten_steps_more(make, trained):
  a, b = make('a', trained['base']), make('b', trained['longer'])
  headers = [(a / 'model.safetensors').read_bytes()[:200] for a in (a, b)]
  assert headers[0] == headers[1]
  compared = compare(a, b)
  assert compared.verdict == 'fine-tuned'
  # The largest relative difference, by numpy on whole arrays.
  expected = {
      name: np.linalg.norm(trained['longer'][name].astype(float) - x)
      / max(np.linalg.norm(x), np.linalg.norm(trained['longer'][name]))
      for name, x in trained['base'].items()
  }
  for difference in compared.differences:
    assert difference.relative == pytest.approx(expected[difference.name], rel=1e-5)
  assert f'{max(expected.values()):.3g}' in compared.reason


def test_models_from_two_seeds(make, trained):
  compared = compare(make('a', trained['base']), make('b', trained['other seed']))
  assert compared.verdict == 'different model'
  matrices = [d.relative for d in compared.differences if d.values >= 1024]
  np.testing.assert_allclose(matrices, math.sqrt(2), atol=0.25)


@pytest.mark.parametrize('name', ['base', 'longer', 'other seed'])
def test_sharded_against_unsharded(make, trained, name):
  whole, sharded = make('a', trained['base']), make('b', trained[name], shards=3)
  other = make('c', trained[name])
  assert len(list(sharded.glob('*.safetensors'))) == 3
  assert compare(whole, sharded) == compare(whole, other)
  assert compare(sharded, other).verdict == 'same weights'


def test_one_bit_is_enough_to_differ(make, trained):
  changed = {name: x.copy() for name, x in trained['base'].items()}
  name = sorted(changed)[-1]
  changed[name].reshape(-1).view(np.uint32)[-1] ^= 1
  compared = compare(make('a', trained['base']), make('b', changed))
  assert compared.verdict == 'fine-tuned'
  assert [d.name for d in compared.differences if not d.equal] == [name]


def test_pieces_of_a_tensor_add_up(make, trained, monkeypatch):
  a, b = make('a', trained['base']), make('b', trained['longer'])
  whole = compare(a, b)
  monkeypatch.setattr(weights, '_PIECE', 7)
  pieces = compare(a, b)
  for one, other in zip(whole.differences, pieces.differences, strict=True):
    assert one.relative == pytest.approx(other.relative, rel=1e-9)


def test_weights_rounded_to_another_dtype_are_the_same(make, trained):
  rounded = {name: x.astype(jnp.bfloat16) for name, x in trained['base'].items()}
  whole, short = make('a', trained['base']), make('b', rounded)
  assert compare(whole, short).verdict == compare(short, whole).verdict == 'same weights'
  assert compare(make('c', trained['longer']), short).verdict == 'fine-tuned'


# --- Configs -------------------------------------------------------------------------------------


def test_settings_are_compared_entry_by_entry():
  a = CONFIG | {'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}, 'use_cache': True}
  b = CONFIG | {'rope_scaling': {'rope_type': 'yarn', 'factor': 8.0}, 'hidden_size': 64}
  assert checkpoints.settings_that_differ(a, b) == [
      checkpoints.Setting('hidden_size', 'model', 32, 64),
      checkpoints.Setting('rope_scaling.factor', 'rope', 4.0, 8.0),
      checkpoints.Setting('use_cache', 'bookkeeping', True, None),
  ]
  assert checkpoints.settings_that_differ(a, a) == []


@pytest.mark.parametrize(
    ('changes', 'told'),
    [
        ({}, 'the same model'),
        ({'use_cache': False}, 'the same model'),
        ({'rope_scaling': {'type': 'default'}}, 'It is the same encoding, written otherwise'),
        ({'rope_theta': 5e5}, 'only in RoPE settings: rope_theta.'),
        ({'vocab_size': 7}, 'in more than RoPE: vocab_size.'),
        ({'vocab_size': 7, 'rope_theta': 5e5}, 'vocab_size, and RoPE in rope_theta.'),
    ],
)
def test_what_is_said_of_configs(make, changes, told):
  pair = read(make('a'), make('b', None, CONFIG | changes))
  assert pair.verdicts[0].endswith(told) or told in pair.verdicts[0]
  assert pair.weights is None and 'not compared' in pair.verdicts[1]


def test_a_base_changed_under_the_same_weights(make, trained):
  raised = CONFIG | {'rope_theta': 1e6}
  pair = read(make('a', trained['base']), make('b', trained['base'], raised))
  [finding] = pair.findings
  assert finding['level'] == 'warning'
  assert f'ntk(factor={100 ** (6 / 8):.3g})' in finding['text']
  tuned = read(make('c', trained['base']), make('d', trained['longer'], raised))
  assert [f['level'] for f in tuned.findings] == ['note']


def test_layers_that_turn_otherwise_are_put_side_by_side(make):
  local = CONFIG | {
      'model_type': 'gemma3_text', 'rope_local_base_freq': 1e4, 'rope_theta': 1e6,
      'layer_types': ['sliding_attention', 'full_attention'],
  }
  pair = read(make('a'), make('b', None, local))
  assert [(a['kind'], b['kind']) for a, b in pair.layers] == [
      ('full_attention', 'sliding_attention'), ('full_attention', 'full_attention'),
  ]


def test_everything_is_written(make, trained, tmp_path):
  narrow = CONFIG | {'head_dim': 16, 'rope_theta': 1e6}
  pair = read(make('a', trained['base']), make('b', trained['longer'], narrow))
  out = tmp_path / 'out'
  rope_output.write_pair(out, pair, rich_console.Console(quiet=True))
  assert {path.name for path in out.iterdir()} == {
      'report.json', 'report.html', 'figure.png', 'figure.svg', 'figure.pdf',
  }
  written = json.loads((out / 'report.json').read_text())
  assert written['weights']['verdict'] == 'fine-tuned'
  assert len(written['weights']['differences']) == len(trained['base'])
  html = (out / 'report.html').read_text()
  assert 'fine-tuned' in html and 'differ in more than RoPE' in html
  assert 'src="http' not in html and '<script' not in html


def test_a_damaged_file_is_one_line_and_status_2(make, trained, tmp_path):
  a, b = make('a', trained['base']), make('b', trained['base'])
  path = b / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-1])
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.rope_report', f'--a={a}', f'--b={b}',
       f'--workdir={tmp_path / "out"}', '--rule=ntk'],
      capture_output=True, text=True, check=False, cwd=pathlib.Path(__file__).parents[2],
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )
  assert done.returncode == 2
  assert str(path) in done.stderr and len(done.stderr.splitlines()) == 1
  assert not (tmp_path / 'out').exists()
