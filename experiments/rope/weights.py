# SPDX-License-Identifier: Apache-2.0
"""Weights in safetensors files, and what two sets of them have in common.

They are never held as a whole: a tensor is compared in pieces of a file that is mapped, not read.
"""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import json
import math
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from experiments import errors

# --- Files ---------------------------------------------------------------------------------------

_DTYPES = {
    'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16,
    'F8_E4M3': jnp.float8_e4m3fn, 'F8_E5M2': jnp.float8_e5m2,
    'I64': np.int64, 'I32': np.int32, 'I16': np.int16, 'I8': np.int8, 'BOOL': np.bool_,
    'U64': np.uint64, 'U32': np.uint32, 'U16': np.uint16, 'U8': np.uint8,
}


@dataclasses.dataclass(frozen=True)
class Tensor:
  """Where the values of a tensor are."""

  path: pathlib.Path
  offset: int
  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  def pieces(self, size: int) -> Iterator[np.ndarray]:
    """Yields the values in order, flat, at most `size` at a time."""
    if self.size == 0:
      return
    values = np.memmap(self.path, self.dtype, mode='r', offset=self.offset, shape=(self.size,))
    for start in range(0, self.size, size):
      yield values[start : start + size]


def find(directory: pathlib.Path) -> dict[str, Tensor]:
  """Finds the tensors of a checkpoint, in one file or in shards; none where there are no weights.

  Raises:
    UserError: names the file that is missing, cut off or damaged.
  """
  if not directory.is_dir():
    return {}
  indices = sorted(directory.glob('*.safetensors.index.json'))
  if indices:
    return _from_index(indices[0])
  whole = directory / 'model.safetensors'
  paths = [whole] if whole.exists() else sorted(directory.glob('*.safetensors'))
  tensors = {}
  for path in paths:
    found = _header(path)
    if twice := sorted(found.keys() & tensors.keys()):
      raise errors.UserError(f'{path} holds {twice[0]!r}, and so does {tensors[twice[0]].path}')
    tensors |= found
  return tensors


def _from_index(index: pathlib.Path) -> dict[str, Tensor]:
  try:
    files = json.loads(index.read_text())['weight_map']
    by_file = {name: _header(index.parent / name) for name in sorted(set(files.values()))}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise errors.UserError(f'{index} is damaged ({error!r}): fetch it again') from None
  for name, file in files.items():
    if name not in by_file[file]:
      raise errors.UserError(f'{index.parent / file} lacks {name!r}, which {index.name} puts there')
  return {name: by_file[file][name] for name, file in files.items()}


def _header(path: pathlib.Path) -> dict[str, Tensor]:
  try:
    with safetensors.safe_open(path, framework='np'):  # checks that header and data fit together
      pass
    with open(path, 'rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      header = json.loads(file.read(length))
  except (OSError, safetensors.SafetensorError) as error:
    raise errors.UserError(f'{path} cannot be read, fetch it again: {error}') from None
  return {
      name: _tensor(path, name, 8 + length, entry)
      for name, entry in header.items()
      if name != '__metadata__'
  }


def _tensor(path: pathlib.Path, name: str, start: int, entry: dict[str, Any]) -> Tensor:
  if entry['dtype'] not in _DTYPES:
    raise errors.UserError(
        f'{path}: {name!r} has dtype {entry["dtype"]}, which is not read here: {", ".join(_DTYPES)}'
    )
  dtype = np.dtype(_DTYPES[entry['dtype']])
  return Tensor(path, start + entry['data_offsets'][0], tuple(entry['shape']), dtype)


# --- Comparison ----------------------------------------------------------------------------------

_PIECE = 2**22  # values: three pieces in float64 are 100 MB
_UNRELATED = 0.5


@dataclasses.dataclass(frozen=True)
class Difference:
  """How one tensor differs.

  Attributes:
    name: of the tensor.
    values: how many it has.
    equal: whether all bits agree; of two dtypes, whether one is the other rounded.
    relative: |b - a| / max(|a|, |b|), 0 for equal tensors and 1.41 for unrelated ones.
    cosine: of a and b as vectors, 1 for equal tensors and 0 for unrelated ones.
    not_finite: values that are infinite or NaN in either; they are left out of both numbers.
  """

  name: str
  values: int
  equal: bool
  relative: float = 0.0
  cosine: float = 1.0
  not_finite: int = 0


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The result: 'same weights', 'fine-tuned' or 'different model', why, and tensor by tensor."""

  verdict: str
  reason: str
  differences: list[Difference]
  only_a: list[str]
  only_b: list[str]
  other_shapes: list[str]


def compare(
    a: dict[str, Tensor], b: dict[str, Tensor], told: Callable[[int], None]
) -> Comparison:
  """Compares two sets of weights tensor by tensor.

  Args:
    a, b: tensors by name. Tables of RoPE that old files store beside the weights are left out.
    told: is called with the number of values after each tensor.
  """
  a, b = ({k: v for k, v in x.items() if not k.endswith('.inv_freq')} for x in (a, b))
  shared = [name for name in a if name in b]
  alike = [name for name in shared if a[name].shape == b[name].shape]
  differences = []
  for name in alike:
    differences.append(_difference(name, a[name], b[name]))
    told(a[name].size)
  only_a, only_b = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
  others = sorted(set(shared) - set(alike))
  total = max(sum(tensor.size for tensor in x.values()) for x in (a, b))
  verdict, reason = _verdict(differences, total, len(only_a + only_b + others))
  return Comparison(verdict, reason, differences, only_a, only_b, others)


def _verdict(differences: list[Difference], total: int, unmatched: int) -> tuple[str, str]:
  compared = sum(d.values for d in differences)
  if 2 * compared < total:
    return 'different model', f'only {compared:,} of {total:,} values have a counterpart'
  missing = f'; {unmatched} tensors have no counterpart of their shape' if unmatched else ''
  changed = [d for d in differences if not d.equal]
  if not changed:
    verdict = 'fine-tuned' if unmatched else 'same weights'
    return verdict, f'all {len(differences)} shared tensors are equal{missing}'
  largest = max(changed, key=lambda d: d.relative)
  cosine = sum(d.cosine * d.values for d in differences) / max(compared, 1)
  reason = (
      f'{len(changed)} of {len(differences)} shared tensors differ, by up to'
      f' {largest.relative:.3g} of their norm ({largest.name}); mean cosine {cosine:.6f}{missing}'
  )
  return ('different model' if cosine < _UNRELATED else 'fine-tuned'), reason


def _difference(name: str, a: Tensor, b: Tensor) -> Difference:
  if all(_same(x, y) for x, y in zip(a.pieces(_PIECE), b.pieces(_PIECE), strict=True)):
    return Difference(name, a.size, equal=True)
  sums, not_finite = np.zeros(4), 0
  for x, y in zip(a.pieces(_PIECE), b.pieces(_PIECE), strict=True):
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    not_finite += int((~finite).sum())
    x, y = x[finite], y[finite]
    sums += [x @ x, y @ y, x @ y, (y - x) @ (y - x)]
  aa, bb, ab, difference = sums
  return Difference(
      name,
      a.size,
      equal=False,
      relative=math.sqrt(difference / max(aa, bb)) if max(aa, bb) else 0.0,
      cosine=ab / math.sqrt(aa * bb) if aa * bb else 0.0,
      not_finite=not_finite,
  )


def _same(x: np.ndarray, y: np.ndarray) -> bool:
  if x.dtype == y.dtype:
    return np.array_equal(x.view(np.uint8), y.view(np.uint8))
  narrow = min(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
  return np.array_equal(x.astype(narrow), y.astype(narrow))
