# SPDX-License-Identifier: Apache-2.0
"""What the TPU's compiler schedules for a kernel, read from its dumps.

libtpu reads LIBTPU_INIT_ARGS once, when it is loaded, so a compile that dumps needs a process of
its own, with `flags(directory)` in its environment.
"""

import pathlib
import re

_NAME = re.compile(r'\d+-(?P<name>.+?)(\.\d+)?-\d+-schedule-analysis_final_bundles')
_TOTAL = re.compile(r'total scheduled bundles:\s*(\d+)')


def flags(directory: pathlib.Path) -> dict[str, str]:
  """Returns the environment in which libtpu dumps its schedules into `directory`."""
  return {'LIBTPU_INIT_ARGS': f'--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true'}


def bundles(directory: pathlib.Path) -> dict[str, int]:
  """Reads the bundles of each kernel: the cycles of one pass through its body, a step of its grid.

  The body of a loop counts once, and so do branches that a step does not take.

  Args:
    directory: where libtpu dumped.

  Returns:
    Bundles by name of the kernel; of kernels of one name, the most.
  """
  found = {}
  for path in directory.glob('*-schedule-analysis_final_bundles.txt'):
    name, total = _NAME.match(path.name), _TOTAL.search(path.read_text())
    if name and total:
      found[name['name']] = max(found.get(name['name'], 0), int(total[1]))
  return found
