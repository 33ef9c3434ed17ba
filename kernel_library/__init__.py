"""What can be compiled: kernel specs, the SKU table and one module per kernel family."""
