"""Ask for many kernels at once: cold ones compile side by side in the daemon, the event loop goes on."""

import asyncio

from kaas import GemmSpec, KernelHandle, KernelSpec, RmsNormSpec, aget_kernel

SPECS: list[KernelSpec] = [
    *(GemmSpec(n=n, k=1024) for n in (256, 512)),
    *(RmsNormSpec(hidden=hidden) for hidden in (1024, 2048)),
]


async def main() -> None:
    """All at once."""
    handles: list[KernelHandle] = await asyncio.gather(*(aget_kernel(spec) for spec in SPECS))
    for handle in handles:
        print(f"{handle!r}: {handle.origin}, compiled in {handle.compile_seconds:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
