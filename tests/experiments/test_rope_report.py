# SPDX-License-Identifier: Apache-2.0
"""The report on the RoPE of one checkpoint."""

import json
import math
import os
import pathlib
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from experiments import errors
from experiments.rope import calibration
from experiments.rope import checkpoints
from experiments.rope import facts as rope_facts
from experiments.rope import tables as rope_tables
from experiments.rope import wavelengths
import pe_jax

LLAMA = pathlib.Path(__file__).parents[1] / 'data' / 'llama31_8b.json'
BARE = {'head_dim': 64, 'max_position_embeddings': 4096, 'model_type': 'llama'}


def layer_of(config, **lengths):
  return calibration.layers(config, **{'length': None, 'trained': None} | lengths)[0]


# --- Numbers -------------------------------------------------------------------------------------


def test_turns_and_wavelengths_from_the_definition():
  inv_freq = np.array([1.0, 0.01, 0.0])
  np.testing.assert_allclose(
      wavelengths.wavelengths(inv_freq), [2 * math.pi, 200 * math.pi, math.inf]
  )
  np.testing.assert_allclose(
      wavelengths.turns(inv_freq, 1000), [1000 / (2 * math.pi), 10 / (2 * math.pi), 0]
  )


def test_stretch_is_the_largest_angle_over_the_largest_in_training():
  trained = np.array([1.0, 2 * math.pi / 150, 2 * math.pi / 1000])
  # 100 tokens: the second channel meets 2/3 of a turn, the third 1/10. 400 tokens: all and 4/10.
  stretch = wavelengths.stretch(trained, 400, trained, 100)
  np.testing.assert_allclose(stretch, [1, 1.5, 4])
  np.testing.assert_allclose(wavelengths.stretch(trained / 4, 400, trained, 100), [1, 1, 1])


def test_reach_is_where_the_stretch_begins():
  layer = layer_of(json.loads(LLAMA.read_text()))
  unscaled = layer.rotation.unscaled()
  for rotation in calibration.rotations([], layer).values():
    inv_freq, _ = rotation.at(layer.length)
    reach = wavelengths.reach(inv_freq, unscaled, layer.trained)
    assert wavelengths.stretch(inv_freq, reach * 0.999, unscaled, layer.trained).max() == 1
    assert wavelengths.stretch(inv_freq, reach * 1.02, unscaled, layer.trained).max() > 1.001


def test_decay_is_the_mean_score_of_rotated_vectors():
  """Against queries that are rotated one distance at a time, in float64."""
  generator = np.random.default_rng(0)
  inv_freq, head_dim, factor, distance = np.array([0.3, 0.02, 0.0005]), 8, 1.2, 40.0
  q = np.ones(head_dim)
  scores = []
  for d in generator.uniform(distance / 1.25, distance * 1.25, 20000):
    turned = q.copy()
    for i, w in enumerate(inv_freq):
      a, b = q[i], q[i + 3]
      turned[i] = factor**2 * (a * math.cos(w * d) - b * math.sin(w * d))
      turned[i + 3] = factor**2 * (b * math.cos(w * d) + a * math.sin(w * d))
    scores.append(q @ turned / head_dim)
  computed = wavelengths.decay(inv_freq, factor, head_dim, np.array([distance]))
  np.testing.assert_allclose(computed, np.mean(scores), atol=0.01)


def test_phase_errors_against_fifty_digits():
  inv_freq = pe_jax.scaling.inverse_frequencies(8, 1e4)
  errors_ = wavelengths.phase_errors(inv_freq, 2**20)
  with mpmath.workdps(50):
    worst = 0
    for p in range(2**20 - 128, 2**20):
      product = np.float32(p) * np.float32(inv_freq[1])
      off = abs(mpmath.mpf(float(product)) - mpmath.mpf(float(inv_freq[1])) * p)
      worst = max(worst, float(off))
  np.testing.assert_allclose(errors_['float32'][1], worst, rtol=1e-5)
  assert errors_['pe_jax'].max() < 1e-6 < errors_['float32'].max() < errors_['bfloat16'].max()
  # bfloat16 has 8 bits: 2 ** 20 - 1 is rounded to 2 ** 20, one radian away.
  assert errors_['bfloat16'][0] > 1


def test_llama_31_by_the_papers_rule():
  """Bands of Llama 3.1 8B, from the definition in plain float64."""
  [facts] = rope_facts.of_config(json.loads(LLAMA.read_text()), 'llama', rope_facts.Asked())
  plain = [500000.0 ** (-2 * i / 128) for i in range(64)]
  for i, w in enumerate(plain):
    turns = 8192 * w / (2 * math.pi)
    if turns < 1:
      w = w / 8
    elif turns < 4:
      smooth = (turns - 1) / 3
      w = (1 - smooth) * w / 8 + smooth * w
    assert facts['channels']['inv_freq'][i] == pytest.approx(w, rel=1e-12)
  assert [facts['trained_length'], facts['length']] == [8192, 131072]
  assert facts['reach'] == pytest.approx(65536)
  rows = [[entry.text for entry in row] for row in rope_tables.bands(facts).rows]
  assert [row[0] for row in rows] == ['0 – 28', '29 – 34', '35', '36 – 38', '39 – 63']
  assert [row[4] for row in rows] == ['kept', '÷ 1.21 – 5.26', '÷ 8', '÷ 8', '÷ 8']


def test_a_rule_that_cannot_be_computed_is_a_line_of_the_table():
  asked = rope_facts.Asked(rules=('given(inv_freq=(1, 2))', 'ntk'))
  [facts] = rope_facts.of_config(json.loads(LLAMA.read_text()), 'llama', asked)
  table = rope_tables.rules(facts)
  assert [row[1].text for row in table.rows][1:] == ['—', '1.0000']
  assert 'pass 64 of them' in table.notes[1]


def test_bands_end_where_a_turn_is_no_longer_complete():
  config = BARE | {'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}}
  [facts] = rope_facts.of_config(config, '', rope_facts.Asked(length=16384, rules=('ntk',)))
  wavelengths_ = [2 * math.pi * 1e4 ** (2 * i / 64) for i in range(32)]
  trained, wanted = (sum(x <= n for x in wavelengths_) for n in (4096, 16384 / 8))
  rows = [row[0].text for row in rope_tables.bands(facts).rows]
  assert rows == [f'0 – {wanted - 1}', f'{wanted} – {trained - 1}', f'{trained} – 31']


def test_the_effect_on_wavelengths_is_told_by_equal_channels():
  def facts(rule):
    config = BARE | {'max_position_embeddings': 16384, 'rope_scaling': rule}
    return rope_facts.of_config(config, '', rope_facts.Asked(rules=('ntk',)))[0]

  plain, linear = facts(None), facts({'rope_type': 'linear', 'factor': 4.0})
  [row] = rope_tables.effect(plain, linear).rows
  longest = 2 * math.pi * 1e4 ** (62 / 64)
  assert [entry.text for entry in row] == [
      '0 – 31', f'6.28 – {longest:,.0f}', f'25.1 – {4 * longest:,.0f}', '4',
  ]
  yarn = facts({'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 4096})
  rows = rope_tables.effect(plain, yarn).rows
  assert [rows[0][3].text, rows[-1][3].text] == ['1', '4'] and 3 <= len(rows) <= 6
  kept = sum(w == v for w, v in zip(*(f['channels']['inv_freq'] for f in (plain, yarn))))
  assert rows[0][0].text == f'0 – {kept - 1}'


def test_channels_that_do_not_turn_meet_no_angle():
  table = {'rope_type': 'proportional', 'partial_rotary_factor': 0.25}
  [facts] = rope_facts.of_config(BARE | {'rope_parameters': table}, '', rope_facts.Asked())
  rows = [[entry.text for entry in row] for row in rope_tables.bands(facts).rows]
  assert rows[0][0] == '0 – 7' and rows[0][4] == 'kept'
  assert {(row[1], row[3], row[4], row[5]) for row in rows[1:]} == {
      ('no end', '0', '0: no turn', 'none')
  }


# --- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (None, 'cannot be read'),
        ('{"head_dim": 64,', 'not valid JSON'),
        ('[1]', 'not a JSON object'),
        ('{"head_dim": 64}', '--trained_length'),
        ('{"head_dim": 64, "max_position_embeddings": 64, "rope_turbo": 1}', 'rope_turbo'),
        ('{"max_position_embeddings": 64}', 'head_dim'),
    ],
)
def test_configs_that_cannot_be_read(tmp_path, content, words):
  path = tmp_path / 'config.json'
  if content is not None:
    path.write_text(content)
  with pytest.raises(errors.UserError, match=words):
    config = checkpoints.read_config(str(path), '--config_json')
    rope_facts.of_config(config, f'--config_json={path}', rope_facts.Asked())


def test_the_text_part_of_a_model_of_several_parts(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps({'text_config': BARE, 'vision_config': {}}))
  assert checkpoints.read_config(str(tmp_path), '--config_json') == BARE


def run(*flags):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.rope_report', *flags],
      capture_output=True, text=True, check=False, cwd=LLAMA.parents[2],
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )


def test_the_command_writes_everything(tmp_path):
  done = run(f'--config_json={LLAMA}', '--rule=yarn; ntk', f'--workdir={tmp_path / "out"}')
  assert done.returncode == 0, done.stderr
  assert not done.stderr
  told = 'do not reach 131,072'
  assert told in done.stdout and 'yarn(factor=16, original_length=8192)' in done.stdout
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {
      'report.json', 'report.html', 'figure.png', 'figure.svg', 'figure.pdf',
  }
  [layer] = json.loads((tmp_path / 'out' / 'report.json').read_text())['layers']
  assert layer['channels'].keys() >= {'wavelength', 'turns', 'turns_trained', 'stretch'}
  assert len(layer['rules']) == 3 and layer['findings'][0]['setting'] == 'factor'
  html = (tmp_path / 'out' / 'report.html').read_text()
  assert 'data:image/svg+xml' in html and told in html
  assert 'src="http' not in html and '<script' not in html


def test_a_mistake_is_one_line_and_status_2(tmp_path):
  done = run(f'--config_json={tmp_path / "none"}', f'--workdir={tmp_path / "out"}')
  assert done.returncode == 2
  assert done.stderr.startswith('error: --config_json=') and len(done.stderr.splitlines()) == 1
  assert not (tmp_path / 'out').exists()
