"""Parts of the programs that route tokens to experts: scores, selection, counts and layouts."""
