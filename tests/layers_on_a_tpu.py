# SPDX-License-Identifier: Apache-2.0
"""Prints the cycles of a training layer on a v5e with each encoding, as JSON; run by test_tpu.py.

libtpu reads the flags that make it write its plans once, when it is loaded: hence a program.
"""

import json
import pathlib
import tempfile

import jax

from experiments.bench import attention
from experiments.bench import topology
import pe_jax

SHAPE = attention.Shape(batch=1, length=2048, heads=16, head_dim=128, dtype='bfloat16')
ENCODINGS = (pe_jax.none(), pe_jax.rope(), pe_jax.alibi(), pe_jax.t5())


def main():
  with tempfile.TemporaryDirectory() as directory:
    chip = topology.Chip('tpu:v5e', pathlib.Path(directory) / 'dump')
    cycles = {}
    for encoding in ENCODINGS:
      fn, arguments = attention.program(encoding, 'default', SHAPE, attention.LAYER)
      cycles[repr(encoding)] = chip.compile(fn, jax.eval_shape(arguments))['cycles']
  print(json.dumps(cycles))


if __name__ == '__main__':
  main()
