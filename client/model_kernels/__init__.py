"""Which kernels a model needs: its public configuration read, and a manifest derived from it."""
