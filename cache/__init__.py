"""Where artifacts live: the artifact file, the store and its index."""
