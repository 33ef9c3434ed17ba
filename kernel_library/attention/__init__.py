"""Parts of attention programs: products of queries and keys, softmax as blocks of keys arrive, weighted values."""
