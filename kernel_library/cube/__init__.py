"""Parts of the programs that multiply matrices: rings, tiles, operands and epilogues of the cube cores."""
