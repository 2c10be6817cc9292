# SPDX-License-Identifier: Apache-2.0
"""Which encoding reads texts longer than those it was trained on?

  python -m experiments.compare --config=configs/compare.py[:quick] --workdir=DIR

`default`, measured on 2026-11-30 with 2 shared cores (AMD EPYC, jax 0.10.2): 742 CPU seconds,
1.23 GB; perplexity at 64 and 512 bytes none 8.27, 11.26; sinusoidal 6.43, 22.54; rope 4.90, 18.12;
alibi 6.14, 6.05; t5 5.38, 6.34; learned 6.69 and no further.
"""

from ml_collections import config_dict


def get_config(variant: str = 'default') -> config_dict.ConfigDict:
  """Returns the settings of `default` or `quick`."""
  variants = {'default': default, 'quick': quick}
  if variant not in variants:
    raise ValueError(f'there is no variant {variant!r} of this config: use {" or ".join(variants)}')
  return variants[variant]()


def default() -> config_dict.ConfigDict:
  config = config_dict.ConfigDict()
  config.corpus = 'stdlib'  # or paths, directories and globs of your own, separated by commas
  config.window = 64  # bytes that a model is trained to read
  config.encodings = _encodings(config.get_oneway_ref('window'))

  config.batch = 32  # windows a step
  config.steps = 500
  config.chunk = 25  # steps between two checkpoints
  config.seed = 0  # the first one
  config.seeds = 3

  config.model = config_dict.ConfigDict({  # of pe_jax.transformer.Config; None is its default
      'layers': 3,
      'model': 64,
      'heads': 4,  # at least 4 for ALiBi: its steepest slope is 2 ** (-8 / heads)
      'kv_heads': config_dict.placeholder(int),
      'head_dim': config_dict.placeholder(int),
      'hidden': config_dict.placeholder(int),
      'norm': 'rms',
      'residual': 'pre',
      'activation': 'relu',  # cheaper than gelu on a CPU
      'bias': False,
      'tie': True,
      'sharing': 'shared',
      'dtype': 'float32',
      'remat': False,
      'window': config_dict.placeholder(int),  # of attention
  })
  config.optimizer = config_dict.ConfigDict({
      # Of --config.seeds=1 --config.grid.learning_rate='(8e-3,1.2e-2,1.6e-2)' the middle was best:
      # perplexity at 64 was 5.09, 5.03, 5.20 for rope() and 6.39, 6.32, 6.35 for alibi().
      'learning_rate': 1e-2,
      'warmup': 0.1,  # part of the steps
      'final': 0.1,  # learning rate of the last step, as a part of the highest
      'weight_decay': 1e-4,
      'clip_norm': 1.0,
      'b1': 0.9,
      'b2': 0.95,
      'eps': 1e-8,
  })
  # Values to try for any number of the optimizer, all of them trained together:
  # --config.grid.learning_rate='(1e-3,2e-3)'.
  config.grid = config_dict.ConfigDict({name: () for name in config.optimizer})

  config.evaluate = config_dict.ConfigDict({
      'times': (1.0, 2.0, 4.0, 8.0),  # lengths, in windows
      'bytes': 32768,  # that every length predicts
      'batch_tokens': 4096,
  })
  return config


def quick() -> config_dict.ConfigDict:
  config = default()
  config.steps = 200
  config.seeds = 1
  config.evaluate.bytes = 16384
  return config


def _encodings(window: config_dict.FieldReference) -> config_dict.FieldReference:
  """The list of encodings; what depends on the window follows it when it is overridden."""
  return (
      'none(); sinusoidal(); learned(length='
      + window.to_str()
      + '); rope(); alibi(); t5(max_distance='
      + (window // 2).to_str()
      + ')'
  )
