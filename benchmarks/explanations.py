"""What docs/benchmarks.md says beside the figures."""

from __future__ import annotations

HEAD = """# Benchmarks

What getting a kernel costs with kaas, against what it replaces or against the floor of the machine. Both sides of
every row are measured in one run on one machine, in turns, and clients that are timed are pinned to one core:
a round trip over a Unix socket takes 9 us on one core and 80 us across two, so that an unpinned figure says
more about the scheduler than about either side. Nothing is switched off to win: verification, permissions, leases
and the audit log are on. Kernels are built by the CPU twin's compiler on both sides: these are figures about
getting and launching a kernel, never about its speed on an NPU.

    python -m benchmarks all                # every row; records figures, plots and this page
    python -m benchmarks hits launch        # some; the others keep what is recorded
    python -m benchmarks all --scale 0.2    # fewer repetitions
    python -m benchmarks quick              # minutes: fails when a ratio is 30 % worse than recorded, three times
    python -m benchmarks soak --minutes 10
    python -m benchmarks profiles           # the flame graphs

It needs `pip install 'ascend-kaas[daemon,bench]'`. A row passes when all of its values meet their targets; the exit
status is 0 when all rows pass. `quick` compares ratios only, so that figures recorded elsewhere serve as well, and with
the least good of the last five full runs, since one machine has moods, too; the project's whole test suite begins
with it.
Figures in brackets beside a value are its target. p99 is told where it is measured, and judged in rows 3 and 7.
"""

BENCHMARKS: dict[str, tuple[str, str]] = {
    "rank_start": (
        "A rank's first kernel (rows 1a, 1b)",
        """Row 1a is what a training job feels: a fresh interpreter has loaded torch, which a rank needs anyway, and wants
a kernel that the node has. Everything after torch counts, imports of kaas or TileLang included; memory is the
resident set's growth over the same stretch. TileLang's side is the same GEMM program, compiled before with the
same toolkit and found in TileLang's own disk cache. Its floor is its import; ours is the import of msgspec, a third
of the time, and of the modules between `get_kernel` and the file. They load with the cyclic garbage collector paused:
one pass over what torch left takes as long as a fifth of them. Modules are compiled (`.pyc`) on both sides, as pip leaves them.

Row 1b leaves imports out: both sides have got another kernel first, so that nothing is left to be imported, and
the order of the two changes from process to process. TileLang must trace the program before it can look it up, for the
program is part of its key; kaas keys on the spec. How much of TileLang's time that is, is told below.""",
    ),
    "hits": (
        "Hits (rows 2 and 3)",
        """Row 2 asks for a spec that this process has: one dictionary look-up by the spec, whose hash is kept in the
object. Its peer is a call of a `@tilelang.jit` function with the arguments of before. Calls are timed in batches of
1000, since one is shorter than reading the clock.

Row 3 asks for a spec that this process does not have but the node's store does. Every sample is a true first:
each spec is asked for once in a process. The work is the key (SHA-256 of the spec between two constant
texts), one `open`, `fstat` and `pread`, two SHA-256 over header and passport, the handle, and a line to the daemon
that says who holds the kernel, sent in bursts. The image is read and verified whole at the kernel's first use,
which is why 4 MiB costs as much as 256 KiB here; the store's owner verified it before and marked it, and whatever
changes the file loses the mark and is verified at once. The floor is what any reader must do: open, map, touch the
first and the last page, unmap, close. It is taken on the same file, before or after in turns. The files are valid
artifacts whose image is padded to size by the encoder.""",
    ),
    "launch": (
        "Launch overhead (row 4)",
        """A call of a handle checks every argument (type, dtype, shape, contiguity, alignment, place, overlap of outputs),
binds the symbols of shapes, packs the arguments and calls the ACL runtime. The kernel is empty and runs as one
block in the calling thread of the twin. The direct side calls the same function of the same library by ctypes, with
arguments packed once and no check. Both wait for the default stream. Arguments are three torch tensors. A call like
one that was accepted before (kinds, dtypes and shapes) is told by comparisons, of which two thirds are torch's own
answers: pointer, dtype, shape, contiguity, place, negation. Of the time in Python the first quartile counts, since
what shares the processor with us doubles every figure for seconds at a time.""",
    ),
    "cold_compile": (
        "A cold compile (row 5)",
        """A small GEMM that nobody compiled before, in three ways: asked of the daemon over a connected channel; in a
fresh process, which imports TileLang, lowers and runs the toolchain; and in a process that has TileLang warm and does
the same two steps in itself, which is the floor of the worker. Daemon, worker and the other two run on one
core, with one toolkit and its precompiled header, each after two seconds of rest; of worker and warm process the
first quartiles are compared, since what disturbs a compile only ever adds to it. The start is the time from the call in the client until the
worker takes its job, by the worker's clock; its own time is from there to its result: checks of generator and
toolkit, lowering, the toolkit's programs. After a compile one worker is forked for the next at once, and when
nothing comes another that rehearses a compile; a kernel asked for right after another runs on the first, copies
some 12,000 pages of the zygote's as it goes and takes a tenth longer for it. What the daemon adds outside is also told whole: request, queue, the end
of the worker's processes, storing with fsync, reply.""",
    ),
    "stampede": (
        "Many ranks, one cold kernel (row 6)",
        """Eight processes that are up and connected get the word at the same time and want the same kernel, which nobody
compiled before; in turns with a single one. CPU seconds are those of the daemon's whole process tree and of the
ranks. Without a daemon eight ranks mean eight compiler starts and eight times the CPU.""",
    ),
    "prewarm": (
        "Pre-warming (row 7)",
        """One list of mixed kernels, compiled by two workers and by one, each time by a new daemon on an empty store.
Meanwhile a rank gets kernels that the store has, a store hit and a memo hit every two milliseconds; their p99 is
compared with the same minute before. The rank is pinned; daemon and workers are not, and outnumber the cores.""",
    ),
    "readers": (
        "Many readers (row 8)",
        """Eight processes get kernels from the store as fast as they can, against one alone on each core in turn. The value is
the throughput of all, over the sum of what one reaches on each core: turn by turn, and the median of the turns. It
can exceed 1 where a busy core is clocked higher; such a value counts as 1. A hit takes no lock, which `/proc/locks` is
asked for meanwhile.""",
    ),
    "store_scale": (
        "A large store (row 9)",
        """Two daemons with stores of different size; one client gets random kernels of both in turns, and lists a page of
50 through each daemon. A hit computes a path and opens it, so that its floor is the file system's look-up; a
list comes from an index in the daemon's memory.""",
    ),
    "full_store": (
        "A full store (rows 9a and 9b)",
        """A daemon is started on 100,000 kernels of which half are above its limit, in turns with one on an empty store:
until it listens, until a client has its first hit, until the compile workers are warm. It evicts behind its
answers; what it evicted is stored again before the next start. Memory is the daemon's resident set with all
kernels indexed, before the first of 100,000 requests and at each tenth of them.""",
    ),
    "idle_daemon": (
        "An idle daemon (row 10)",
        """The daemon's own resident memory, CPU of the daemon and its zygote over a minute in which nobody asks, and the
time from the start of the process until a client has its first answer. It answers before its workers are warm.""",
    ),
    "twin_header": (
        "The twin's precompiled header (row 11)",
        """The twin's device compiler with and without the precompiled prelude, on the lowered source of one example of
every family. Without the prelude g++ reads the emulation headers anew for every kernel; with it the rest is
the kernel's own templates and code.""",
    ),
    "remote_tier": (
        "A remote tier that never answers (row 13)",
        """A socket that accepts and says nothing stands for a remote tier whose network is gone. Hits in the node's own
store never ask a remote tier, so their latency must not tell whether there is one, while other ranks miss and
wait for it. A miss waits for one deadline (0.3 s here; 2 s by default) and is compiled then. After three such misses
in a row the tier is left alone for a while, so that in life only few pay even that; here the breaker
is kept from opening.""",
    ),
    "lowering": (
        "Lowering (row 12)",
        """Every example spec of the library is lowered to Ascend C in CPU seconds, in one process with TileLang warm. The
ten slowest are named. Nearly all of it is TileLang's own passes.""",
    ),
    "model_layers": (
        "A whole layer, cold and warm",
        """The manifests of `examples/`: every kernel of one layer, compiled on a cold node by the daemon, and got again from
the warm store by a fresh process.""",
    ),
    "soak": (
        "Soak",
        """Eight clients on one node get kernels for minutes; the store may hold fewer files than they ask for, so that
hits, compiles and evictions never rest. Nothing may fail; memory of daemon, zygote and clients and the p99 of hits
may not grow from the middle third to the last.""",
    ),
}

PROFILES: tuple[tuple[str, str, str], ...] = (
    (
        "flame-hit",
        "A store hit",
        """Sampled by py-spy with native frames while a pinned process gets 200 kernels in turns with an empty memo. What is
left is system calls (`open`, `fstat`, `pread`, `close`), SHA-256 of key, header and passport, and the making of
the objects. The floor is the system calls, which are the floor of row 3.""",
    ),
    (
        "flame-compile",
        "A cold compile",
        """The worker's side of cold compiles of small GEMMs, waiting included: what is below `lower` is TileLang tracing
and lowering the program, what is below `build_device_binary` is waiting for the toolchain (bisheng, then the
linker). With a real toolkit bisheng takes the place of the twin's g++. The floor is the same two steps in a warm
process, row 5's worker ratio.""",
    ),
)
