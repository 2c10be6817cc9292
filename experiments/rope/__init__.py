# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of its RoPE, and what two of them differ in."""
