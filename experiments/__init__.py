# SPDX-License-Identifier: Apache-2.0
"""Experiments that compare positional encodings; each has a main of its own."""
