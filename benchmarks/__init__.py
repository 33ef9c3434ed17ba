"""What kaas costs against what it replaces: ``python -m benchmarks all``."""
