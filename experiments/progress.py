# SPDX-License-Identifier: Apache-2.0
"""What the person in front of the terminal sees while an experiment runs."""

import time

from rich import console as rich_console
from rich import progress as rich_progress
from rich import text as rich_text


class Board:
  """A live bar for the cell that is trained and one for the whole job; plain lines in a log file.

  Args:
    console: where to write.
    cells: number of cells of the job.
    steps: steps of each cell.
  """

  def __init__(self, console: rich_console.Console, *, cells: int, steps: int):
    self._console = console
    self._steps = steps
    self._left = cells * steps
    self._told = 0
    self._bars = rich_progress.Progress(
        rich_progress.TextColumn('{task.description}', markup=False),
        rich_progress.BarColumn(bar_width=24),
        rich_progress.TextColumn('{task.fields[news]}', style='cyan', markup=False),
        rich_progress.TextColumn('{task.fields[left]}', style='magenta', markup=False),
        console=console,
        disable=not console.is_terminal,
    )
    self._cell = self._bars.add_task('', total=steps, news='', left='', visible=False)
    self._job = self._bars.add_task('all cells', total=self._left, news='', left='')

  def __enter__(self) -> 'Board':
    self._bars.start()
    return self

  def __exit__(self, *_) -> None:
    self._bars.stop()

  def phase(self, name: str, doing: str) -> None:
    """Shows that a cell is being compiled or evaluated."""
    self._bars.update(self._cell, description=name, news=doing, left='', visible=True)
    self._plain(f'{name}: {doing}')

  def begin(self, name: str, done: int) -> None:
    """Starts the bar of a cell, of which `done` steps were run earlier."""
    self._told = time.monotonic()
    self._bars.reset(self._cell, total=self._steps, completed=done, description=name, visible=True)
    self._count(done)
    if done:
      self._say(f'{name}: goes on after step {done}')

  def advance(self, name: str, done: int, loss: float, seconds: float) -> None:
    """Shows the state after step `done`: mean loss, seconds a step."""
    steps = done - int(self._bars.tasks[self._cell].completed)
    self._count(steps)
    news = f'step {done}/{self._steps}  loss {loss:.3f}  {1 / seconds:.1f} steps/s'
    left = f'{_clock(seconds * (self._steps - done))} left'
    self._bars.update(self._cell, completed=done, news=news, left=left)
    self._bars.update(self._job, left=f'{_clock(seconds * self._left)} left')
    if done == self._steps or time.monotonic() - self._told > 10:
      self._told = time.monotonic()
      self._plain(f'{name}: {news}  {left}, all cells {_clock(seconds * self._left)}')

  def finished_before(self, name: str) -> None:
    """Shows that a cell needs no work."""
    self._count(self._steps)
    self._say(f'{name}: finished earlier, kept')

  def _count(self, steps: int) -> None:
    self._left -= steps
    self._bars.advance(self._job, steps)

  def _say(self, line: str) -> None:
    self._console.print(rich_text.Text(line))

  def _plain(self, line: str) -> None:
    if not self._console.is_terminal:
      self._say(line)


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02d}:{seconds:02d}' if hours else f'{minutes}:{seconds:02d}'
