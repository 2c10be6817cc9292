# SPDX-License-Identifier: Apache-2.0
"""A job that takes seconds: 1 layer of width 16, windows of 8 bytes, 4 steps."""

from collections.abc import Callable
import pathlib

import ml_collections
import pytest

from configs import compare

ENCODINGS = 'rope(); learned(length=8)'


@pytest.fixture(scope='session')
def text_file(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp('text') / 'text.txt'
  path.write_text(''.join(f'{i} times {i} is {i * i}.\n' for i in range(300)))
  return path


@pytest.fixture(scope='session')
def make_config(text_file) -> Callable[..., ml_collections.FrozenConfigDict]:
  """Returns a function from overrides ({'evaluate.bytes': 64}) to a small config."""

  def make(overrides: dict | None = None) -> ml_collections.FrozenConfigDict:
    config = compare.get_config('quick')
    config.update_from_flattened_dict({
        'corpus': str(text_file),
        'encodings': ENCODINGS,
        'window': 8,
        'batch': 4,
        'steps': 4,
        'chunk': 2,
        'seeds': 2,
        'model.layers': 1,
        'model.model': 16,
        'evaluate.times': (1.0, 2.0),
        'evaluate.bytes': 128,
        'evaluate.batch_tokens': 48,
    })
    config.update_from_flattened_dict(overrides or {})
    return ml_collections.FrozenConfigDict(config)

  return make
