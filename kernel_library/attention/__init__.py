"""Parts of attention programs: scores of queries and keys, softmax as blocks arrive, weighted values."""
