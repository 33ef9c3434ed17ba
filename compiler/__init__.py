"""How a spec becomes a device binary: toolchains, workers and the CPU twin."""
