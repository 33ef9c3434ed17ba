"""Parts of attention programs: scores of queries and keys, their softmax as blocks arrive, weighted values."""
