# SPDX-License-Identifier: Apache-2.0
"""Positional encodings in JAX: pure functions, one record, one attention.

The namespace is the catalogue.
"""

from pe_jax import hf
from pe_jax import kernels
from pe_jax import layouts
from pe_jax import positions
from pe_jax import scaling
from pe_jax._bind import bind
from pe_jax._bind import factory
from pe_jax.attention import attend
from pe_jax.attention import attention_weights
from pe_jax.base import assemble
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.base import initial_carry
from pe_jax.base import parameter_count
from pe_jax.base import take_heads
from pe_jax.base import trainable
from pe_jax.combine import compose
from pe_jax.combine import sites
from pe_jax.combine import with_positions
from pe_jax.encodings._alibi import alibi
from pe_jax.encodings._alibi import alibi_bias
from pe_jax.encodings._alibi import alibi_learned
from pe_jax.encodings._alibi import alibi_slopes
from pe_jax.encodings._cope import contextual_positions
from pe_jax.encodings._cope import cope
from pe_jax.encodings._cope import cope_logits
from pe_jax.encodings._fire import fire
from pe_jax.encodings._fire import fire_bias
from pe_jax.encodings._fire import fire_ratio
from pe_jax.encodings._fox import forget_gates
from pe_jax.encodings._fox import fox
from pe_jax.encodings._fox import fox_bias
from pe_jax.encodings._fox import segmented_sum
from pe_jax.encodings._heads import on_heads
from pe_jax.encodings._kerple import kerple_log
from pe_jax.encodings._kerple import kerple_log_bias
from pe_jax.encodings._kerple import kerple_power
from pe_jax.encodings._kerple import kerple_power_bias
from pe_jax.encodings._learned import learned
from pe_jax.encodings._learned import learned_embedding
from pe_jax.encodings._learned import resize_table
from pe_jax.encodings._logn import log_n
from pe_jax.encodings._logn import log_n_scale
from pe_jax.encodings._music import music_transformer
from pe_jax.encodings._music import music_transformer_bias
from pe_jax.encodings._none import none
from pe_jax.encodings._rope import apply_rope
from pe_jax.encodings._rope import rope
from pe_jax.encodings._rope import rope_tables
from pe_jax.encodings._rope import rotate_half
from pe_jax.encodings._rope import rotate_interleaved
from pe_jax.encodings._sandwich import sandwich
from pe_jax.encodings._sandwich import sandwich_bias
from pe_jax.encodings._sandwich import sandwich_ratios
from pe_jax.encodings._shaw import shaw
from pe_jax.encodings._shaw import shaw_bias
from pe_jax.encodings._shaw import shaw_index
from pe_jax.encodings._shaw import shaw_value
from pe_jax.encodings._sinusoidal import concatenated
from pe_jax.encodings._sinusoidal import sinusoidal
from pe_jax.encodings._sinusoidal import sinusoidal_embedding
from pe_jax.encodings._sinusoidal import sinusoidal_frequencies
from pe_jax.encodings._sinusoidal import sinusoidal_shift
from pe_jax.encodings._sinusoidal import sinusoidal_wavelengths
from pe_jax.encodings._sinusoidal import timescale_frequencies
from pe_jax.encodings._sinusoidal import timing_signal
from pe_jax.encodings._t5 import t5
from pe_jax.encodings._t5 import t5_bias
from pe_jax.encodings._t5 import t5_bidirectional_buckets
from pe_jax.encodings._t5 import t5_boundaries
from pe_jax.encodings._t5 import t5_causal_buckets
from pe_jax.encodings._transformer_xl import transformer_xl
from pe_jax.encodings._transformer_xl import transformer_xl_bias
from pe_jax.encodings._xpos import xpos
from pe_jax.encodings._xpos import xpos_decay
from pe_jax.encodings._xpos import xpos_exponents
from pe_jax.masks import Mask

__version__ = '0.1.0'

__all__ = (
    'alibi',
    'alibi_bias',
    'alibi_learned',
    'alibi_slopes',
    'apply_rope',
    'assemble',
    'attend',
    'attention_weights',
    'bind',
    'compose',
    'concatenated',
    'contextual_positions',
    'cope',
    'cope_logits',
    'Dims',
    'Encoding',
    'factory',
    'fire',
    'fire_bias',
    'fire_ratio',
    'forget_gates',
    'fox',
    'fox_bias',
    'hf',
    'initial_carry',
    'kernels',
    'kerple_log',
    'kerple_log_bias',
    'kerple_power',
    'kerple_power_bias',
    'layouts',
    'learned',
    'learned_embedding',
    'log_n',
    'log_n_scale',
    'Mask',
    'music_transformer',
    'music_transformer_bias',
    'none',
    'on_heads',
    'parameter_count',
    'positions',
    'resize_table',
    'rope',
    'rope_tables',
    'rotate_half',
    'rotate_interleaved',
    'sandwich',
    'sandwich_bias',
    'sandwich_ratios',
    'scaling',
    'segmented_sum',
    'shaw',
    'shaw_bias',
    'shaw_index',
    'shaw_value',
    'sinusoidal',
    'sinusoidal_embedding',
    'sinusoidal_frequencies',
    'sinusoidal_shift',
    'sinusoidal_wavelengths',
    'sites',
    't5',
    't5_bias',
    't5_bidirectional_buckets',
    't5_boundaries',
    't5_causal_buckets',
    'take_heads',
    'timescale_frequencies',
    'timing_signal',
    'trainable',
    'transformer_xl',
    'transformer_xl_bias',
    'with_positions',
    'xpos',
    'xpos_decay',
    'xpos_exponents',
)
