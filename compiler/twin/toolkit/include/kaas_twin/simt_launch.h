// SIMT functions: asc_vf_call, the built-in coordinates, the block barrier.
//
// A SIMT function is one instruction of PIPE_V. Its threads run one after another, each until it blocks; warps have 32
// lanes. A thread that never blocks costs no context switch.
#pragma once

#include <cstdint>

#include "kaas_twin/engine.h"

namespace kaas_twin::simt {

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kMaximumThreads = 2048;

struct Coordinates {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// What a thread can ask about itself.
struct ThreadView {
  Coordinates thread, block, block_size, grid_size;
  std::uint32_t lane = 0;
};

/// The thread now running on this host thread, or nullptr outside SIMT functions.
extern __thread const ThreadView* running_thread;

inline const ThreadView& current(const char* name) {
  if (running_thread == nullptr) [[unlikely]]
    fail("%s is used outside a SIMT function", name);
  return *running_thread;
}

using Body = void (*)(void* arguments);

/// Runs body(arguments) for every thread of the block. Fails on barrier divergence and on an illegal thread count.
void launch(Coordinates block_size, Body body, void* arguments);

/// Waits until all threads of the block are here.
void barrier();

/// Whether an address lies on the stack of one of this host thread's SIMT threads.
bool on_stack(const void* address);

}  // namespace kaas_twin::simt

#define threadIdx (::kaas_twin::simt::current("threadIdx").thread)
#define blockIdx (::kaas_twin::simt::current("blockIdx").block)
#define blockDim (::kaas_twin::simt::current("blockDim").block_size)
#define gridDim (::kaas_twin::simt::current("gridDim").grid_size)

inline constexpr int warpSize = 32;

namespace cce {
struct dim3 {
  std::uint32_t x, y, z;
  constexpr dim3(std::uint32_t x_size = 1, std::uint32_t y_size = 1, std::uint32_t z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};
}  // namespace cce
using cce::dim3;

/// Queues `Function(arguments...)`, run by every thread of a block of `size` threads, on PIPE_V.
template <auto Function, typename... Arguments>
inline void asc_vf_call(cce::dim3 size, Arguments... arguments) {
  kaas_twin::submit(PIPE_V, "asc_vf_call", [=]() KAAS_TWIN_UNCHECKED {
    auto call = [&]() KAAS_TWIN_UNCHECKED { Function(arguments...); };
    kaas_twin::simt::launch(
        {size.x, size.y, size.z}, [](void* closure) { (*static_cast<decltype(call)*>(closure))(); }, &call);
  });
}

inline void asc_syncthreads() { kaas_twin::simt::barrier(); }

// One host thread runs all threads of a block, and blocks meet in memory through atomics only: fences order the rest.
inline void asc_threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void asc_threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
