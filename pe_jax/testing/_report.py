# SPDX-License-Identifier: Apache-2.0
"""The report of a check: a table to read, and the error that carries it."""

import dataclasses

PASSED, FAILED, NOT_APPLICABLE = 'passed', 'failed', 'not applicable'
_MARKS = {PASSED: ('ok', '32'), FAILED: ('FAIL', '1;31'), NOT_APPLICABLE: ('n/a', '2')}


@dataclasses.dataclass(frozen=True)
class Finding:
  """What one law found.

  Attributes:
    law: its name.
    sentence: what it says.
    status: 'passed', 'failed' or 'not applicable'.
    message: what was seen, why it is not applicable, or what was not tried; else empty.
    input: the smallest input found that shows it; else empty.
  """

  law: str
  sentence: str
  status: str
  message: str = ''
  input: str = ''


@dataclasses.dataclass(frozen=True)
class Report:
  """What all the laws found about one encoding; str is a table.

  Attributes:
    encoding: its name.
    findings: one for each law, in the order of the contract.
  """

  encoding: str
  findings: tuple[Finding, ...]

  @property
  def failed(self) -> tuple[str, ...]:
    """Names of the laws that failed."""
    return tuple(f.law for f in self.findings if f.status == FAILED)

  @property
  def ok(self) -> bool:
    """Whether no law failed."""
    return not self.failed

  def table(self, colour: bool = False) -> str:
    """Writes a line for each law, then a summary."""
    counts = {s: sum(f.status == s for f in self.findings) for s in _MARKS}
    summary = ', '.join(f'{count} {status}' for status, count in counts.items())
    lines = [line for finding in self.findings for line in _lines(finding, colour)]
    return '\n'.join([self.encoding, *lines, f'{self.encoding}: {summary}'])

  def __str__(self) -> str:
    return self.table()


class ConformanceError(AssertionError):
  """An encoding breaks laws; the message lists them.

  Attributes:
    report: all findings.
  """

  def __init__(self, report: Report):
    lines = [line for f in report.findings if f.status == FAILED for line in _lines(f, False)]
    super().__init__('\n'.join([f'{report.encoding} breaks {len(report.failed)} laws:', *lines]))
    self.report = report


def _lines(finding: Finding, colour: bool) -> list[str]:
  mark, code = _MARKS[finding.status]
  paint = lambda text: f'\033[{code}m{text}\033[0m' if colour else text
  head = f'  {paint(f"{mark:<4}")} {finding.law:<18} {finding.sentence}'
  if finding.status != FAILED:
    return [f'{head} {paint(f"({finding.message})")}' if finding.message else head]
  seen = [f'{"":25} seen:  {finding.message}']
  return [head, *seen] + [f'{"":25} input: {finding.input}'] * bool(finding.input)
