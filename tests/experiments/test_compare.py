# SPDX-License-Identifier: Apache-2.0
"""The whole job: what it writes, that it goes on where it stopped, what it says of bad input."""

import csv
import io
import json

import numpy as np
import pytest
from rich import console as rich_console

from experiments import errors
from experiments import files
from experiments import job as job_lib
from experiments import metrics
from experiments import output
from experiments import progress
from experiments import recompute
from experiments import results
from experiments import train
from tests.jobs import cells
from tests.jobs import directory_of
from tests.jobs import run
from tests.jobs import snapshot


@pytest.fixture(scope='module')
def job(make_config, tmp_path_factory):
  """A finished job and what it printed."""
  workdir = tmp_path_factory.mktemp('job')
  return workdir, run(make_config(), workdir)


# --- What it writes ------------------------------------------------------------------------------


def test_writes_every_form_of_the_report(job):
  workdir, printed = job
  rows = json.loads((workdir / 'results.json').read_text())['rows']
  assert [row['encoding'] for row in rows] == ['rope()', 'learned(length=8)']
  assert (workdir / 'figure.png').read_bytes().startswith(b'\x89PNG')
  assert (workdir / 'figure.pdf').read_bytes().startswith(b'%PDF')
  assert b'<svg' in (workdir / 'figure.svg').read_bytes()
  assert '\\begin{tabular}' in (workdir / 'table.tex').read_text()
  ppl = rows[0]['lengths'][1]['perplexity']
  shown = f'{ppl["mean"]:.2f} ± {ppl["deviation"]:.2f}'
  for text in (printed, (workdir / 'report.html').read_text()):
    assert shown in text
  lines = list(csv.DictReader((workdir / 'table.csv').read_text().splitlines()))
  assert float(lines[1]['perplexity_mean']) == ppl['mean']


def test_a_length_that_cannot_be_read_has_its_reason_everywhere(job):
  workdir, printed = job
  reason = 'its table ends at 8 positions'
  texts = [(workdir / name).read_text() for name in ('table.csv', 'table.tex', 'report.html')]
  assert all(reason in text for text in [printed, *texts])
  [row] = [row for row in csv.DictReader(texts[0].splitlines()) if row['reason']]
  assert (row['encoding'], row['length'], row['loss_mean']) == ('learned(length=8)', '16', '')


def test_the_page_stands_alone(job):
  page = (job[0] / 'report.html').read_text()
  assert 'http' not in page.replace('http-equiv', '') and '<script' not in page
  assert 'src="data:image/svg+xml;base64,' in page
  for words in ('cpu', 'sha256', 'jaxlib', '&quot;learning_rate&quot;', 'bytes is held out'):
    assert words in page


def test_losses_are_summed_up_over_seeds(job):
  cell = cells(job[0])['rope()']
  row = json.loads((job[0] / 'results.json').read_text())['rows'][0]
  loss = np.array(cell['lengths'][1]['loss'])
  assert loss.shape == (2,) and cell['lengths'][1]['bytes'] == 128
  found = row['lengths'][1]
  assert found['loss']['mean'] == pytest.approx(loss.mean())
  assert found['loss']['deviation'] == pytest.approx(loss.std(ddof=1))
  assert found['perplexity']['mean'] == pytest.approx(np.exp(loss).mean())


def test_counts_the_parameters_that_an_encoding_brings(job):
  rope, learned = (cells(job[0])[name]['parameters'] for name in ('rope()', 'learned(length=8)'))
  # Embedding, projections of attention, two layers of 4 x 16, three norms, gain of the logits.
  assert rope == {'encoding': 0, 'total': 256 * 16 + 4 * 16**2 + 2 * 16 * 64 + 3 * 16 + 1}
  assert learned == {'encoding': 8 * 16, 'total': rope['total'] + 8 * 16}


def test_logs_every_chunk(job):
  directory = directory_of(job[0], 'rope()')
  rows = metrics.read(directory)
  assert [row['step'] for row in rows] == [2, 4]
  assert all(len(row['loss']) == 2 for row in rows)
  assert list((directory / 'tensorboard').glob('events*'))


# --- Stopped and started again -------------------------------------------------------------------


def test_a_finished_job_trains_nothing_again(job, make_config, monkeypatch):
  workdir, _ = job
  before = (workdir / 'results.json').read_bytes()

  def fail(*_, **__):
    pytest.fail('a finished cell was touched')

  monkeypatch.setattr(train, 'init', fail)
  assert 'finished earlier' in run(make_config(), workdir)
  assert (workdir / 'results.json').read_bytes() == before


def test_a_stopped_job_ends_with_the_same_numbers(job, make_config, tmp_path, monkeypatch):
  config = make_config({'encodings': 'rope()'})
  with monkeypatch.context() as patch:
    patch.setattr(progress.Board, 'advance', stop)
    with pytest.raises(KeyboardInterrupt):
      run(config, tmp_path)
  assert not cells(tmp_path)
  assert 'goes on after step 2' in run(config, tmp_path)
  again, whole = cells(tmp_path)['rope()'], cells(job[0])['rope()']
  assert again['lengths'] == whole['lengths']
  [directory] = tmp_path.glob('cells/*')
  assert [row['step'] for row in metrics.read(directory)] == [2, 4]
  assert not list(directory.glob('0*.npz'))


def stop(*_, **__):
  raise KeyboardInterrupt


@pytest.mark.parametrize(
    'change', [{'steps': 6}, {'optimizer.b1': 0.8}, {'model.hidden': 8}, {'seed': 1}]
)
def test_a_changed_setting_never_meets_the_old_cells(job, make_config, change, monkeypatch):
  workdir, _ = job
  before = snapshot(workdir)
  monkeypatch.setattr(progress.Board, 'phase', stop)  # before anything is computed
  with pytest.raises(KeyboardInterrupt):
    run(make_config(change), workdir)
  after = snapshot(workdir)
  assert {name: after[name] for name in before} == before


def test_the_same_cells_are_found_whatever_else_is_compared(job, make_config, monkeypatch):
  monkeypatch.setattr(train, 'init', stop)
  run(make_config({'encodings': 'rope()', 'chunk': 3}), job[0])
  with pytest.raises(KeyboardInterrupt):
    run(make_config({'encodings': 'rope( )'}), job[0])


def test_two_jobs_do_not_share_a_workdir(job, make_config):
  with job_lib.lock(job[0]):
    with pytest.raises(errors.UserError, match='another job is running'):
      run(make_config(), job[0])


# --- Computed and merged again -------------------------------------------------------------------


def test_the_losses_come_again_from_the_saved_parameters(job, tmp_path):
  console = rich_console.Console(file=io.StringIO())
  for directory, stored in output.collect([job[0]]).items():
    assert recompute.difference(directory, stored, console) == 0.0
  directory = directory_of(job[0], 'rope()')
  stored = json.loads((directory / 'result.json').read_text())
  with np.load(directory / 'params.npz') as arrays:
    spoilt = {name: array * 1.1 for name, array in arrays.items()}
  np.savez(tmp_path / 'params.npz', **spoilt)
  assert recompute.difference(tmp_path, stored, console) > 1e-3
  (tmp_path / 'params.npz').unlink()
  with pytest.raises(errors.UserError, match='train again'):
    recompute.difference(tmp_path, stored, console)


def test_merges_workdirs(job, tmp_path):
  other = cells(job[0])['rope()']
  other['identity']['settings']['model']['heads'] = 2
  files.write_json(tmp_path / 'cells' / 'rope-other' / 'result.json', other)
  merged = output.collect([job[0], tmp_path, job[0]])
  rows = results.summarize(list(merged.values()))
  assert sorted(row['encoding'] for row in rows) == [
      'learned(length=8) model.heads=4',
      'rope() model.heads=2',
      'rope() model.heads=4',
  ]
  output.write(tmp_path / 'merged', list(merged.values()), rich_console.Console(file=io.StringIO()))
  page = (tmp_path / 'merged' / 'report.html').read_text()
  assert all(row['encoding'] in page for row in rows)


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('change', 'told'),
    [
        ({'encodings': 'roep()'}, ["no encoding 'roep'", 'rope']),
        ({'encodings': 'rope(bas=1)'}, ["no argument 'bas'", 'base']),
        ({'model.heads': 3}, ['model=16', 'heads=3']),
        ({'model.heads': 4, 'model.kv_heads': 3}, ['heads=4', 'kv_heads=3']),
        ({'model.heads': 16}, ['rope()', 'even']),
        ({'encodings': 'rope(width=3)'}, ['width=3', 'even']),
        ({'encodings': 'learned(length=4)'}, ['4 positions', 'window has 8', '--config.window']),
        ({'evaluate.times': (0.5, 1.0)}, ['evaluate.times=0.5', '4 is below the window of 8']),
        ({'evaluate.times': (1.3,)}, ['evaluate.times=1.3', 'whole']),
        ({'evaluate.times': ()}, ['evaluate.times', 'at least one']),
        ({'window': 0}, ['--config.window=0', 'at least 1']),
        ({'batch': -1}, ['--config.batch=-1', 'at least 1']),
        ({'steps': 0}, ['--config.steps=0', 'at least 1']),
        ({'chunk': 0}, ['--config.chunk=0', 'at least 1']),
        ({'seeds': 0}, ['--config.seeds=0', 'at least 1']),
        ({'seed': -1}, ['--config.seed=-1', 'from 0']),
        ({'seed': 2**31 - 1}, ['--config.seed=2147483647', 'to 2147483646']),
        ({'model.layers': 0}, ['--config.model.layers=0', 'at least 1']),
        ({'model.norm': 'best'}, ["norm='best'", 'rms']),
        ({'optimizer.b1': 2.0}, ['optimizer.b1=2.0', 'below 1']),
        ({'grid.warmup': (2.0,)}, ['grid.warmup=2.0', 'at most 1']),
        ({'optimizer.learning_rate': -1.0}, ['optimizer.learning_rate=-1.0', 'finite']),
        ({'grid.learning_rate': ('abc',)}, ['grid.learning_rate=abc', 'finite number']),
        ({'grid.learning_rate': (0.1, 0.1)}, ['grid.learning_rate', 'once']),
        ({'corpus': '/nowhere/*.txt'}, ["'/nowhere/*.txt'", 'stdlib']),
        ({'window': 4096}, ['too short', '684 bytes', '8193', '--config.window']),
    ],
)
def test_tells_a_mistake_before_anything_is_touched(job, make_config, change, told):
  before = snapshot(job[0])
  with pytest.raises(errors.UserError) as caught:
    run(make_config(change), job[0])
  for words in told:
    assert words in str(caught.value)
  assert str(caught.value).count('\n') < 3
  assert snapshot(job[0]) == before


def test_a_hook_of_the_users_that_fails_is_told(make_config, tmp_path):
  hook = "import pe_jax\n\ndef _bias(params, *_):\n  return params['slope']\n\n"
  factory = "def steep():\n  return pe_jax.Encoding(name='steep', bias=_bias)\n"
  (tmp_path / 'own.py').write_text(hook + factory)
  with pytest.raises(errors.UserError, match=r"KeyError: 'slope' \(.*own.py, line 4\)"):
    run(make_config({'encodings': f'{tmp_path}/own.py:steep()'}), tmp_path / 'w')
  assert not (tmp_path / 'w').exists()


def test_a_workdir_that_is_a_file_is_told(make_config, text_file):
  content = text_file.read_bytes()
  for workdir in (text_file, text_file / 'below'):
    with pytest.raises(errors.UserError, match='--workdir=.* is a file'):
      run(make_config({'encodings': 'none()'}), workdir)
  assert text_file.read_bytes() == content
