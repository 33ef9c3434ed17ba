"""Parts of the programs of the vector cores: rows in UB, conversions, quantisation, small matrices."""
