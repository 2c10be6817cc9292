# SPDX-License-Identifier: Apache-2.0
"""Measures what position costs: time and memory of each encoding by length and kernel.

  python -m experiments.benchmark --workdir=DIR
  python -m experiments.benchmark --encodings='alibi(); mine.py:gated()' --lengths=4096 \\
    --kernels=dense,blockwise --parts=attention
  python -m experiments.benchmark --platform=tpu:v5e --encodings='rope(); alibi()'

Causal attention, forward and with all gradients, by every kernel, beside the same without an
encoding, jax.nn with the bias and, with the extra `peers`, other libraries; and rotations beside a
copy. All sides of a comparison run in turns in one process. With --platform the TPU's compiler says
what it makes of attention, and of a layer: no TPU is needed, and --rounds and --peers say nothing.
Started again with the same --workdir, it goes on where it stopped.
"""

from collections.abc import Sequence
import pathlib
import tempfile

from absl import flags
from rich import console as rich_console
from rich import text as rich_text

from experiments import errors
from experiments import job
from experiments import output
from experiments import parse
from experiments import tables
from experiments.bench import attention
from experiments.bench import report
from experiments.bench import run
from experiments.bench import store as store_lib
from experiments.bench import topology

_ENCODINGS = flags.DEFINE_string(
    'encodings', 'alibi(); t5(); fire(); rope()', "As in 'rope(base=5e5); mine.py:gated()'."
)
_LENGTHS = flags.DEFINE_list('lengths', None, 'Tokens; 512,2048 unless given, 2048 of a TPU.')
_KERNELS = flags.DEFINE_list(
    'kernels', None, 'Of pe_jax.kernels; `default` (kernel=None) and `xla` always run.'
)
_BATCH = flags.DEFINE_integer('batch', 1, 'Rows.', lower_bound=1)
_HEADS = flags.DEFINE_integer('heads', None, '8 unless given, 16 of a TPU.', lower_bound=1)
_HEAD_DIM = flags.DEFINE_integer('head_dim', None, '64 unless given, 128 of a TPU.', lower_bound=1)
_DTYPE = flags.DEFINE_enum(
    'dtype', None, run.DTYPES, 'float32 unless given, bfloat16 of a TPU.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 15, 'How often each side runs.', lower_bound=1)
_PARTS = flags.DEFINE_list('parts', list(run.PARTS), 'attention, rotation or both.')
_PEERS = flags.DEFINE_bool('peers', True, 'Whether other libraries run too; see the extra `peers`.')
_PLATFORM = flags.DEFINE_string('platform', None, 'tpu:v5e or tpu:v6e; this device unless given.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory for all of it; unless given, printed.')

_HERE = {
    'lengths': ['512', '2048'],
    'kernels': ['dense', 'blockwise'],
    'heads': 8,
    'head_dim': 64,
    'dtype': 'float32',
}
_ON_A_TPU = {
    'lengths': ['2048'],
    'kernels': ['dense', 'blockwise', 'splash', 'flash_tpu'],
    'heads': 16,
    'head_dim': 128,
    'dtype': 'bfloat16',
}


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise errors.UserError(f'{argv[1]!r} is no flag: encodings are written --encodings={argv[1]!r}')
  asked, console = _asked(), output.console()
  if not _WORKDIR.value:
    return _run(asked, None, console)
  directory = output.as_directory(_WORKDIR.value, '--workdir')
  with job.lock(directory):
    _run(asked, directory, console)


def _asked() -> run.Asked:
  """Reads the flags; those that were not given are those of the platform."""
  defaults = _HERE if _PLATFORM.value is None else _ON_A_TPU
  if _PLATFORM.value is not None and 'attention' not in _PARTS.value:
    raise errors.UserError('--platform compiles attention only: leave --parts out')

  def get(flag: flags.FlagHolder):
    return defaults[flag.name] if flag.value is None else flag.value

  asked = run.Asked(
      encodings=parse.encodings(_ENCODINGS.value),
      kernels=attention.read_kernels(get(_KERNELS)),
      lengths=tuple(map(_length, get(_LENGTHS))),
      batch=_BATCH.value,
      heads=get(_HEADS),
      head_dim=get(_HEAD_DIM),
      dtype=get(_DTYPE),
      rounds=_ROUNDS.value,
      parts=tuple(_PARTS.value),
      peers=_PEERS.value,
  )
  run.check(asked)
  return asked


def _length(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise errors.UserError(
        f'--lengths={",".join(_LENGTHS.value)} cannot be: give numbers of tokens above 0, as in'
        ' 512,2048'
    )
  return int(text)


def _run(
    asked: run.Asked, directory: pathlib.Path | None, console: rich_console.Console
) -> None:
  """Measures, prints every table when it is complete, and then the report."""
  store = store_lib.Store(directory)
  tell = lambda line: console.print(rich_text.Text(line, 'dim'))
  with tempfile.TemporaryDirectory(prefix='pe_jax_') as scratch:
    if _PLATFORM.value is None:
      about, found = run.machine(), run.comparisons(asked, store, tell)
    else:
      chip = topology.Chip(_PLATFORM.value, pathlib.Path(scratch) / 'dump')
      about, found = chip.describe(), topology.comparisons(asked, chip, store, tell)
    shown = []
    for comparison in found:
      console.print(tables.to_terminal(report.table(comparison), report.title(comparison)))
      shown.append(comparison)
  if content := report.summary(shown):
    console.print(tables.to_terminal(content, report.SUMMARY))
  if directory is not None:
    report.write(directory, shown, {'asked': asked.describe(), **about}, console)


if __name__ == '__main__':
  errors.run(main, stopped='; the same command goes on after the last comparison')
