"""References: what each family computes, in plain torch, independent of the kernels.

One module per family, of the same name, with ``reference(spec, inputs)``: ``inputs`` are the call's arguments
by parameter name (tensors that are read, scalars, and the old values of tensors that are updated), the result
holds the expected outputs by parameter name. Floating-point results are float64 before their last rounding
unless the family defines its roundings exactly; then they have the output's own dtype, to be compared bit by
bit.
"""
