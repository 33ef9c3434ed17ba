// The interface of include/kaas_twin/engine.h on top of the current session.
#include <cstdarg>

#include "engine_state.h"
#include "text.h"

namespace kaas_twin {

void fail(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  if (Session::current() == nullptr) throw BlockFailure(text);
  Session::current()->fail_here(text);
}

void not_modelled(const char* intrinsic, const char* detail) {
  fail("%s%s%s is not modelled by the CPU twin", intrinsic, detail[0] != '\0' ? ": " : "", detail);
}

CoreKind core_kind() { return Session::current()->core().kind; }
std::uint32_t block_index() { return Session::current()->core().block->index; }
std::uint32_t block_count() { return Session::current()->plan().blocks; }
std::uint32_t sub_block_index() { return Session::current()->core().sub_block; }
std::uint32_t sub_block_count() {
  const KernelEntry& kernel = *Session::current()->plan().kernel;
  return kernel.kind == KernelKind::kMixed ? kernel.vectors_per_block : 1;
}
std::uint8_t* ub_base() { return Session::current()->core().ub; }

std::uint8_t* onchip(Memory memory, std::uint64_t offset, std::uint64_t bytes, const char* intrinsic,
                     std::size_t alignment) {
  Core& core = Session::current()->core();
  std::uint8_t* base = nullptr;
  std::uint64_t size = 0;
  const char* name = "";
  switch (memory) {
    case Memory::kL1: base = core.l1, size = kL1Bytes, name = "L1"; break;
    case Memory::kL0A: base = core.l0a, size = kL0ABytes, name = "L0A"; break;
    case Memory::kL0B: base = core.l0b, size = kL0BBytes, name = "L0B"; break;
    case Memory::kL0C: base = core.l0c, size = kL0CBytes, name = "L0C"; break;
    case Memory::kUb: base = core.ub, size = kUbBytes, name = "UB"; break;
    case Memory::kL0AScales: base = core.l0a_scales, size = kScaleBytes, name = "the scales of L0A"; break;
    case Memory::kL0BScales: base = core.l0b_scales, size = kScaleBytes, name = "the scales of L0B"; break;
  }
  if (base == nullptr) fail("%s: %s has no %s", intrinsic, core.label().c_str(), name);
  if (offset > size || bytes > size - offset) {
    fail("%s: out of range on %s: offset %lld + %llu bytes exceeds its %llu bytes", intrinsic, name,
         static_cast<long long>(offset), static_cast<unsigned long long>(bytes),
         static_cast<unsigned long long>(size));
  }
  if (alignment > 1 && offset % alignment != 0) {
    fail("%s: misaligned on %s: offset %llu is no multiple of %zu", intrinsic, name,
         static_cast<unsigned long long>(offset), alignment);
  }
  return base + offset;
}

std::uint8_t* ub_range(const void* address, std::size_t bytes, const char* intrinsic, std::size_t alignment) {
  const auto* base = Session::current()->core().ub;
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(address) - base);
  return onchip(Memory::kUb, offset, bytes, intrinsic, alignment);
}

const std::uint8_t* vector_load(const void* address, std::size_t bytes, const char* intrinsic,
                                std::size_t alignment) {
  assert_on_pipe_v(intrinsic);
  const std::uint8_t* from = ub_range(address, bytes, intrinsic, alignment);
  if (running_check != nullptr) running_check->touch_vector(from, bytes, Access::kRead, intrinsic);
  return from;
}

std::uint8_t* vector_store_unnoted(const void* address, std::size_t bytes, const char* intrinsic,
                                   std::size_t alignment) {
  assert_on_pipe_v(intrinsic);
  return ub_range(address, bytes, intrinsic, alignment);
}

std::uint8_t* vector_store(const void* address, std::size_t bytes, const char* intrinsic, std::size_t alignment) {
  std::uint8_t* to = vector_store_unnoted(address, bytes, intrinsic, alignment);
  note_vector_store(to, bytes, intrinsic);
  return to;
}

void note_vector_store(const void* address, std::size_t bytes, const char* intrinsic) {
  if (running_check != nullptr) running_check->touch_vector(address, bytes, Access::kWrite, intrinsic);
}

bool accesses_are_checked() { return running_check != nullptr; }

void vector_barrier() {
  if (running_check != nullptr) running_check->vector_barrier();
}

void note_atomic(const void* address, std::size_t bytes) {
  if (running_check != nullptr) running_check->touch_directly(address, bytes, Access::kAtomic);
}

void assert_on_pipe_v(const char* intrinsic) {
  if (Session::current() == nullptr || Session::current()->running_pipe() != 1) {
    fail("%s: a vector instruction outside a vector function (not on PIPE_V)", intrinsic);
  }
}

void submit_task(pipe_t pipe, const char* name, Task task) {
  Instruction instruction;
  instruction.name = name;
  instruction.task = std::move(task);
  issue_step(pipe, std::move(instruction));
}

}  // namespace kaas_twin
