# SPDX-License-Identifier: Apache-2.0
"""RoPE as a Hugging Face config.json describes it. Needs json alone.

All that such a file says about positions is honoured, or refused by the name of its key. Attention
windows are masks, not encodings: they are not read here.
"""

from pe_jax.hf._models import layer_types
from pe_jax.hf._read import head_dim
from pe_jax.hf._read import load
from pe_jax.hf._read import POSITION_KEYS
from pe_jax.hf._read import rope_from_config
from pe_jax.hf._write import to_config

__all__ = ('POSITION_KEYS', 'head_dim', 'layer_types', 'load', 'rope_from_config', 'to_config')
