# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent, whenever the process dies; and trees of arrays in them."""

import io
import json
import os
import pathlib
from typing import Any
import warnings
import zipfile

import jax
import numpy as np

from experiments import errors

_KEPT = 2  # the newest checkpoint, and the one before it in case the disk spoils the newest


def write(path: pathlib.Path, content: bytes | str) -> None:
  """Replaces a file as a whole: a reader sees the old content or the new, never a part."""
  path.parent.mkdir(parents=True, exist_ok=True)
  scratch = path.with_name(path.name + '.tmp')
  with open(scratch, 'wb') as file:
    file.write(content.encode() if isinstance(content, str) else content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(scratch, path)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Replaces a file by `to_json` of a value, indented."""
  write(path, to_json(value, indent=1) + '\n')


def read_json(path: pathlib.Path) -> Any:
  """Reads what `write_json` wrote; a file that something else damaged is told of."""
  try:
    return json.loads(path.read_bytes())
  except ValueError as error:
    raise errors.UserError(
        f'{path} is damaged ({error}): delete its directory, and the experiment makes it again'
    ) from None


def to_json(value: Any, indent: int | None = None) -> str:
  """Writes strict JSON; a number that is not finite becomes null."""
  return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _finite(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_finite(item) for item in value]
  if isinstance(value, float) and not np.isfinite(value):
    return None
  return value


# --- Trees of arrays -----------------------------------------------------------------------------


def save_tree(path: pathlib.Path, tree: Any) -> None:
  """Writes the leaves of a tree as a .npz that numpy alone can read, named by their paths."""
  arrays = {}
  for name, leaf in _named(tree):
    arrays[name] = np.asarray(leaf)
    if arrays[name].dtype.kind not in 'biuf':
      raise ValueError(
          f'{name} has dtype {arrays[name].dtype}, which .npz does not keep: store float32 and'
          ' compute in what you like'
      )
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  write(path, buffer.getvalue())


def load_tree(path: pathlib.Path, like: Any) -> Any:
  """Reads a tree of the structure, shapes and dtypes of `like`, and refuses any other.

  Raises:
    ValueError: the file holds other leaves, shapes or dtypes; none is cast or padded.
    zipfile.BadZipFile: the file is damaged.
  """
  names, leaves = zip(*_named(like), strict=True)
  if not zipfile.is_zipfile(path):
    raise zipfile.BadZipFile(f'{path} is cut off or no .npz')
  with np.load(path) as stored:
    arrays = {name: stored[name] for name in stored.files}
  if set(arrays) != set(names):
    raise ValueError(f'{path} holds other arrays: {sorted(set(arrays) ^ set(names))}')
  for name, want in zip(names, leaves, strict=True):
    have = arrays[name]
    if (have.shape, have.dtype) != (want.shape, want.dtype):
      raise ValueError(
          f'{path}: {name} is {have.dtype} {have.shape}, expected {want.dtype} {want.shape}'
      )
  return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in names])


def _named(tree: Any) -> list[tuple[str, Any]]:
  return [(jax.tree_util.keystr(p), leaf) for p, leaf in jax.tree.leaves_with_path(tree)]


# --- Checkpoints ---------------------------------------------------------------------------------


def save_checkpoint(directory: pathlib.Path, step: int, tree: Any) -> None:
  """Keeps the state after `step` steps; older ones go only when the new one is complete."""
  save_tree(directory / f'{step:09d}.npz', tree)
  for path in _checkpoints(directory)[_KEPT:]:
    path.unlink()


def load_checkpoint(directory: pathlib.Path, like: Any) -> tuple[int, Any] | None:
  """Returns (step, state) of the newest checkpoint that can be read, or None."""
  for path in _checkpoints(directory):
    try:
      return int(path.stem), load_tree(path, like)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
      warnings.warn(f'{path} cannot be read: {error}; taking the one before it', stacklevel=2)
  return None


def remove_checkpoints(directory: pathlib.Path) -> None:
  """Deletes all of them: the cell is finished."""
  for path in _checkpoints(directory):
    path.unlink()


def _checkpoints(directory: pathlib.Path) -> list[pathlib.Path]:
  return sorted(directory.glob('[0-9]' * 9 + '.npz'), reverse=True)
