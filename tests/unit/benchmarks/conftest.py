"""The benchmarks are no part of the distribution: they are imported from the repository's root."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))
