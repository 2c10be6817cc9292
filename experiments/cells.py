# SPDX-License-Identifier: Apache-2.0
"""One cell of a comparison: an encoding with all its seeds and grid points, trained and evaluated.

A cell lives in a directory whose name holds a hash of everything that determines its numbers, so a
changed setting, text, file or version never meets the results of another. Inside:

    cell.json        what the hash was taken of
    000000250.npz    the state after 250 steps, while it is being trained
    metrics.jsonl    one line a chunk of steps; tensorboard/ holds the same
    params.npz       the trained arrays
    result.json      the numbers; written last, so it stands for a finished cell
"""

from collections.abc import Mapping
import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import re
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from experiments import corpus as corpus_lib
from experiments import errors
from experiments import evaluate
from experiments import files
from experiments import metrics
from experiments import parse
from experiments import progress
from experiments import results
from experiments import sources
from experiments import train
import pe_jax

# Settings that change how a cell is run, or which cells are, but none of their numbers. The text
# itself is identified by its hash.
_NOT_IDENTITY = ('encodings', 'corpus', 'chunk')
_LIBRARIES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
_SOURCE = sources.digest(corpus_lib, evaluate, train)  # now: what is imported is what runs


@dataclasses.dataclass(frozen=True)
class Cell:
  """An encoding and where its numbers are kept.

  Attributes:
    typed: the encoding as it was typed.
    encoding: the record.
    directory: of the cell.
    identity: everything that determines the numbers.
  """

  typed: str
  encoding: pe_jax.Encoding
  directory: pathlib.Path
  identity: Mapping[str, Any]

  def result(self) -> dict[str, Any] | None:
    """Returns the numbers of a finished cell, or None."""
    path = self.directory / 'result.json'
    return files.read_json(path) if path.exists() else None


def make(
    typed: str,
    encoding: pe_jax.Encoding,
    config: ml_collections.FrozenConfigDict,
    corpus: corpus_lib.Corpus,
    workdir: pathlib.Path,
) -> Cell:
  """Names the cell of an encoding under a config and a text."""
  settings = json.loads(config.to_json())
  identity = {
      'encoding': typed,
      'record': repr(encoding),
      'settings': {k: v for k, v in settings.items() if k not in _NOT_IDENTITY},
      'corpus': corpus.sha256,
      'files': parse.source_files(typed),
      'sources': _SOURCE,
      'versions': {name: importlib.metadata.version(name) for name in _LIBRARIES},
      'device': jax.devices()[0].device_kind,
  }
  slug = re.sub(r'[^a-z0-9.]+', '-', typed.lower()).strip('-')[:40]
  name = f'{slug}-{results.digest(identity)}'
  return Cell(typed, encoding, workdir / 'cells' / name, identity)


def check(cell: Cell, config: ml_collections.FrozenConfigDict) -> None:
  """Traces the cell without computing anything, and tells what is wrong with it."""
  limit = cell.encoding.max_length
  if limit is not None and limit < config.window:
    raise errors.UserError(
        f'{cell.typed} has {limit} positions, but the window has {config.window}: give it at least'
        ' as many, or lower --config.window'
    )
  try:
    train.model_shapes(train.recipe(config, cell.encoding))
  except Exception as error:
    line = parse.where(error, cell.typed)
    kind = '' if isinstance(error, (TypeError, ValueError)) else f'{type(error).__name__}: '
    if kind and not line:
      raise  # neither the config's fault nor that of a user's hook
    raise errors.UserError(f'{cell.typed} with this config: {kind}{error}{line}') from error


def run(
    cell: Cell,
    config: ml_collections.FrozenConfigDict,
    corpus: corpus_lib.Corpus,
    board: progress.Board,
) -> dict[str, Any]:
  """Trains and evaluates a cell from where it stopped; a finished one is only read."""
  if (result := cell.result()) is not None:
    board.finished_before(cell.typed)
    return result
  about = {
      'identity': cell.identity,
      'config': json.loads(config.to_json()),
      'corpus': corpus.describe(),
  }
  files.write_json(cell.directory / 'cell.json', about)
  model, cost = _train(cell, config, corpus, board)
  board.phase(cell.typed, 'evaluating')
  members = train.members(config)
  result = {
      **about,
      'points': members.points,
      'seeds': members.seeds,
      'lengths': evaluate.by_length(model, corpus.valid, config, cell.encoding.max_length),
      'parameters': _parameters(cell, config),
      'cost': cost,
  }
  files.write_json(cell.directory / 'result.json', result)
  files.remove_checkpoints(cell.directory)
  return cell.result()


def reevaluate(
    directory: pathlib.Path,
    encoding: pe_jax.Encoding,
    config: ml_collections.FrozenConfigDict,
    corpus: corpus_lib.Corpus,
) -> list[dict[str, Any]]:
  """Computes the losses of a finished cell again, from its saved parameters."""
  members, recipe = train.members(config), train.recipe(config, encoding)
  start = functools.partial(train.init, recipe=recipe)
  like = jax.eval_shape(start, members.seed, members.hypers).model
  model = files.load_tree(directory / 'params.npz', like)
  return evaluate.by_length(model, corpus.valid, config, encoding.max_length)


def _train(cell, config, corpus, board) -> tuple[Any, dict[str, Any]]:
  """Runs the steps that are left; returns the trained models and what they cost."""
  members, recipe = train.members(config), train.recipe(config, cell.encoding)
  board.phase(cell.typed, 'compiling')
  # Not jitted: its small operations are compiled once for all cells, a whole program for each.
  state = train.init(members.seed, members.hypers, recipe=recipe)
  done, state = files.load_checkpoint(cell.directory, state) or (0, state)
  run_steps = jax.jit(train.run_steps, static_argnames='recipe', donate_argnames='state')
  data = (jax.device_put(corpus.train), members.seed, members.hypers)
  compiled = run_steps.lower(state, *data, np.int32(0), np.int32(1), recipe=recipe).compile()
  board.begin(cell.typed, done)
  with metrics.Log(cell.directory, members.labels(), done) as log:
    while done < config.steps:
      start, done = done, min(done + config.chunk, config.steps)
      began = time.perf_counter()
      state, losses = jax.block_until_ready(
          compiled(state, *data, np.int32(start), np.int32(done))
      )
      seconds = (time.perf_counter() - began) / (done - start)
      log.write(done, np.asarray(losses), seconds)
      files.save_checkpoint(cell.directory, done, state)
      board.advance(cell.typed, done, float(np.mean(losses)), seconds)
  files.save_tree(cell.directory / 'params.npz', state.model)
  return state.model, {
      'step_seconds': log.median_seconds(),
      'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
  }


def _parameters(cell: Cell, config: ml_collections.FrozenConfigDict) -> dict[str, int]:
  """Counts the trained numbers of one member, and how many of them the encoding brings."""

  def count(encoding: pe_jax.Encoding) -> int:
    shapes = train.model_shapes(train.recipe(config, encoding))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))

  total = count(cell.encoding)
  return {'encoding': total - count(pe_jax.none()), 'total': total}
