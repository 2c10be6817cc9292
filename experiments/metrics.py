# SPDX-License-Identifier: Apache-2.0
"""Training curves: JSON lines to compute with, TensorBoard to look at."""

import json
import pathlib
import statistics

import numpy as np
import tensorboardX

from experiments import files


class Log:
  """Curves of the members of one cell, in `metrics.jsonl` and `tensorboard/`.

  Args:
    directory: of the cell.
    labels: name of each member.
    step: the step that training goes on from. What was logged after it is dropped, because those
      steps will be run again.
  """

  def __init__(self, directory: pathlib.Path, labels: list[str], step: int):
    rows = [row for row in read(directory) if row['step'] <= step]
    path = directory / 'metrics.jsonl'
    files.write(path, ''.join(files.to_json(row) + '\n' for row in rows))
    self._seconds = [row['seconds_per_step'] for row in rows]
    self._labels = labels
    self._lines = open(path, 'a', encoding='utf-8')
    self._board = tensorboardX.SummaryWriter(str(directory / 'tensorboard'), purge_step=step + 1)

  def __enter__(self) -> 'Log':
    return self

  def __exit__(self, *_) -> None:
    self._lines.close()
    self._board.close()

  def write(self, step: int, losses: np.ndarray, seconds: float) -> None:
    """Logs the mean loss of each member over the chunk that ends at `step`, and seconds a step."""
    self._seconds.append(seconds)
    row = {'step': step, 'seconds_per_step': seconds, 'loss': losses.tolist()}
    self._lines.write(files.to_json(row) + '\n')
    self._lines.flush()
    for label, loss in zip(self._labels, losses, strict=True):
      self._board.add_scalar(f'loss/{label}', loss, step)
    self._board.add_scalar('steps_per_second', 1 / seconds, step)

  def median_seconds(self) -> float:
    """Returns the median over the chunks of the seconds that one step takes."""
    return statistics.median(self._seconds)


def read(directory: pathlib.Path) -> list[dict]:
  """Returns the logged lines of a cell; one that was cut off by a kill is left out."""
  path = directory / 'metrics.jsonl'
  lines = path.read_text().splitlines() if path.exists() else []
  return [json.loads(line) for line in lines if line.endswith('}')]
