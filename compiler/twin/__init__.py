"""The CPU twin toolkit: a CANN-shaped toolchain that runs Ascend C on the host."""
