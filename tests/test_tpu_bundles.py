# SPDX-License-Identifier: Apache-2.0
"""The reader of libtpu's dumps, on files as it writes them."""

from tests import tpu_bundles


def test_the_most_bundles_of_every_name_are_read(tmp_path):
  files = {
      '1796-pe_jax_flash_distance.2-71-schedule-analysis_final_bundles.txt': 1931,
      '1797-pe_jax_flash_distance.3-71-schedule-analysis_final_bundles.txt': 1930,
      '1798-fusion-65-schedule-analysis_final_bundles.txt': 41,
      '1799-fusion-47-schedule-analysis_packed-bundles-pre-ra.txt': 90,
  }
  for name, total in files.items():
    (tmp_path / name).write_text(f'Analysis:\n\ttotal scheduled bundles:    {total}\n\tempty: 9\n')
  assert tpu_bundles.bundles(tmp_path) == {'pe_jax_flash_distance': 1931, 'fusion': 41}
