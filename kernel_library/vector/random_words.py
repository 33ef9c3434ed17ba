"""Random words: Threefry-2x32 with 20 rounds, two 32-bit words for each counter, in vector registers.

A counter's words depend on nothing but the counter and the key, so that results depend on neither core count
nor plan. Additions, rotations and exclusive ors only: lanes need no wide product.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any

RANDOM_WORD_SOURCE = "kaas.kernel_library.vector.random_words"
"""For ``Family.sources`` of a family that uses this module."""

# Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def random_words() -> Any:
    """A macro ``(words, low, high)``: 64 counters in ``words[0]`` become two words each.

    ``words`` is a register array of two uint32 vectors; the key's words are uint32 scalars. The counters'
    high words are 0.
    """
    import tilelang.ascend.language as T

    @T.macro
    def mix(words: Any, distance: int) -> None:
        words[0] = T.simd.vadd(words[0], words[1])
        left = T.simd.vshls(words[1], distance)
        words[1] = T.simd.vxor(T.simd.vor(left, T.simd.vshrs(words[1], 32 - distance)), words[0])

    @T.macro
    def four_rounds(words: Any, distances: Any) -> None:
        mix(words, distances[0])
        mix(words, distances[1])
        mix(words, distances[2])
        mix(words, distances[3])

    @T.macro
    def inject(words: Any, first: Any, second: Any, number: int) -> None:
        words[0] = T.simd.vadd(words[0], first)
        words[1] = T.simd.vadd(words[1], T.simd.vadd(second, T.simd.vdup(T.uint32(number), "uint32")))

    @T.macro
    def run(words: Any, low: Any, high: Any) -> None:
        key = T.simd.alloc_local((3,), "uint32")
        key[0], key[1] = T.simd.vdup(low, "uint32"), T.simd.vdup(high, "uint32")
        key[2] = T.simd.vxor(T.simd.vxor(key[0], key[1]), T.simd.vdup(T.uint32(PARITY), "uint32"))
        words[0] = T.simd.vadd(words[0], key[0])
        words[1] = key[1]
        four_rounds(words, ROTATIONS[0])
        inject(words, key[1], key[2], 1)
        four_rounds(words, ROTATIONS[1])
        inject(words, key[2], key[0], 2)
        four_rounds(words, ROTATIONS[0])
        inject(words, key[0], key[1], 3)
        four_rounds(words, ROTATIONS[1])
        inject(words, key[1], key[2], 4)
        four_rounds(words, ROTATIONS[0])
        inject(words, key[2], key[0], 5)

    return run
