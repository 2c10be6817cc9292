# SPDX-License-Identifier: Apache-2.0
"""Wrong encodings, one defect each, and the law that must flag each of them.

Those with a system's name re-create what was found in public code.
"""

from tests.mutants import arrays
from tests.mutants import biases
from tests.mutants import formulas
from tests.mutants import pairwise
from tests.mutants import positions
from tests.mutants import precision
from tests.mutants import records
from tests.mutants import tokens

_FILES = (arrays, biases, formulas, pairwise, positions, precision, records, tokens)
MUTANTS = {name: one for file in _FILES for name, one in file.MUTANTS.items()}
