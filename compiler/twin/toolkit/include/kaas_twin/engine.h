// What the emulation headers may ask of the engine: who am I, where is on-chip memory, queue work on a pipe,
// fail.
//
// The engine runs every block of a launch as one AIC and two AIV cores (or a subset). Each core has a scalar
// stream (the kernel function itself, on a fibre) and pipes. An intrinsic samples its arguments and special
// registers, then queues a closure on its pipe with submit(); the closure runs later, when the schedule and
// the flags let it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

// Address spaces and function kinds of the device language. L1, L0A, L0B and L0C are never dereferenced by
// kernel code, so their pointers are offsets from zero; a UB pointer is a host pointer into the core's UB
// (see ub_base).
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __biasbuf__
#define __fbuf__
#define __ssbuf__
#define __aicore__
#define __global__
#define __cube__
#define __vector__
#define __mix__(cube_count, vector_count)
#define __simd_vf__
#define __simd_callee__
#define __simt_vf__
#define __simt_callee__
#define __no_simd_vf_fusion__
#define __launch_bounds__(...)
#define __SIMT_DEVICE_FUNCTIONS_DECL__

// Code of the emulation whose own loads and stores are no accesses of the kernel (see happens_before.h of the
// engine: an image compiled for the check reports every load and store of its text).
#define KAAS_TWIN_UNCHECKED __attribute__((no_sanitize("thread")))

#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 3510
#endif

// Tokens of the generated code.
enum pipe_t : int {
  PIPE_S = 0,
  PIPE_V = 1,
  PIPE_M = 2,
  PIPE_MTE1 = 3,
  PIPE_MTE2 = 4,
  PIPE_MTE3 = 5,
  PIPE_ALL = 6,
  PIPE_FIX = 10,
};
enum event_t : int {
  EVENT_ID0 = 0,
  EVENT_ID1,
  EVENT_ID2,
  EVENT_ID3,
  EVENT_ID4,
  EVENT_ID5,
  EVENT_ID6,
  EVENT_ID7,
};

namespace kaas_twin {

enum class CoreKind : std::uint8_t { kAic, kAiv };
enum class Memory : std::uint8_t { kL1, kL0A, kL0B, kL0C, kUb, kL0AScales, kL0BScales };

inline constexpr std::size_t kUbBytes = 256 * 1024;
inline constexpr std::size_t kL1Bytes = 512 * 1024;
inline constexpr std::size_t kL0ABytes = 64 * 1024;
inline constexpr std::size_t kL0BBytes = 64 * 1024;
inline constexpr std::size_t kL0CBytes = 256 * 1024;
inline constexpr std::size_t kScaleBytes = kL0ABytes / 16;  // the scales beside L0A, and those beside L0B
inline constexpr std::size_t kBlockBytes = 32;  // the unit of on-chip alignment

// Ends the block with a message: printf format. The engine adds block, core, pipe and instruction. Usable
// from scalar code, from a closure on a pipe and from a SIMT fibre (it throws; never catch it).
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The same, with the standard wording for an intrinsic or a variant of one that the twin does not model.
[[noreturn]] void not_modelled(const char* intrinsic, const char* detail = "");

// Who runs: valid in scalar code and inside closures alike.
CoreKind core_kind();
std::uint32_t block_index();  // 0 .. block_count()-1
std::uint32_t block_count();
std::uint32_t sub_block_index();  // 0 or 1 on an AIV, 0 on the AIC
std::uint32_t sub_block_count();  // AIVs per block

// First byte of the running core's UB (kUbBytes long, between guard areas). The driver rewrites `(__ubuf__ T
// *)0` to it. On the AIC it is the base of a shadow range, so that L0C->UB destinations can be told as
// offsets.
std::uint8_t* ub_base();

// Checks [address, address + bytes) against the running core's UB and the alignment in bytes, and returns the
// address.
std::uint8_t* ub_range(const void* address, std::size_t bytes, const char* intrinsic,
                       std::size_t alignment = 1);

// Host address of [offset, offset + bytes) of a memory of the running core, range-checked. For kUb the offset
// is relative to ub_base().
std::uint8_t* onchip(Memory memory, std::uint64_t offset, std::uint64_t bytes, const char* intrinsic,
                     std::size_t alignment = 1);

// The same for a load and a store of a vector function, outside PIPE_V an error. In a checked run they also note
// the access; note_vector_store does nothing else, for stores with holes.
const std::uint8_t* vector_load(const void* address, std::size_t bytes, const char* intrinsic,
                                std::size_t alignment);
std::uint8_t* vector_store(const void* address, std::size_t bytes, const char* intrinsic, std::size_t alignment);
std::uint8_t* vector_store_unnoted(const void* address, std::size_t bytes, const char* intrinsic,
                                   std::size_t alignment);
void note_vector_store(const void* address, std::size_t bytes, const char* intrinsic);
// Whether the running launch checks what orders its accesses.
bool accesses_are_checked();
// asc_mem_bar between vector stores and the vector loads after it.
void vector_barrier();
// An atomic update from a SIMT function.
void note_atomic(const void* address, std::size_t bytes);

// Stops the block when the caller is not running as an instruction of PIPE_V of an AIV.
void assert_on_pipe_v(const char* intrinsic);

// A closure of one queued instruction: move-only, called once.
class Task {
 public:
  Task() = default;
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Task>>>
  explicit Task(F&& closure) : body_(new Holder<std::decay_t<F>>(std::forward<F>(closure))) {}
  KAAS_TWIN_UNCHECKED void operator()() { body_->call(); }
  explicit operator bool() const { return body_ != nullptr; }

 private:
  struct Body {
    KAAS_TWIN_UNCHECKED Body() {}
    KAAS_TWIN_UNCHECKED virtual ~Body() {}
    virtual void call() = 0;
  };
  template <typename F>
  struct Holder final : Body {
    KAAS_TWIN_UNCHECKED explicit Holder(F&& closure) : closure_(std::move(closure)) {}
    KAAS_TWIN_UNCHECKED explicit Holder(const F& closure) : closure_(closure) {}
    KAAS_TWIN_UNCHECKED ~Holder() override {}
    KAAS_TWIN_UNCHECKED void call() override { closure_(); }
    F closure_;
  };
  std::unique_ptr<Body> body_;
};

// Queues an instruction on a pipe of the running core. `name` must outlive the launch (a string literal).
// PIPE_S runs it at once. Only from scalar code.
void submit_task(pipe_t pipe, const char* name, Task task);

template <typename F>
void submit(pipe_t pipe, const char* name, F&& closure) {
  submit_task(pipe, name, Task(std::forward<F>(closure)));
}

// What the driver turns a call of a __simd_vf__ function into: the arguments are evaluated now, the call
// becomes one instruction of PIPE_V.
template <typename F, typename... Arguments>
void vector_function(const char* name, F function, Arguments... arguments) {
  submit_task(PIPE_V, name, Task([=]() KAAS_TWIN_UNCHECKED { function(arguments...); }));
}

}  // namespace kaas_twin
