# SPDX-License-Identifier: Apache-2.0
"""One file, one paper. The public names stand in `pe_jax`."""
