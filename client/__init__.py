"""What a training process imports: get_kernel, handles, and the command line."""
