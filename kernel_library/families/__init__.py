"""One module per kernel family."""
