// Context switch and bookkeeping of fibres. See include/kaas_twin/fibre.h.
#include "kaas_twin/fibre.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

// kaas_twin_switch(from, to): saves the callee-saved state on the stack, stores the stack pointer in *from,
// takes `to` as stack pointer and returns into what was saved there. kaas_twin_start: first instruction of a
// fresh fibre; hands the fibre (kept in a callee-saved register) to fibre_entry.
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type kaas_twin_switch,@function
.globl kaas_twin_switch
.hidden kaas_twin_switch
kaas_twin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kaas_twin_switch,.-kaas_twin_switch
.p2align 4
.type kaas_twin_start,@function
.globl kaas_twin_start
.hidden kaas_twin_start
kaas_twin_start:
  .cfi_startproc
  .cfi_undefined rip
  movq %rbx, %rdi
  call kaas_twin_fibre_entry
  ud2
  .cfi_endproc
.size kaas_twin_start,.-kaas_twin_start
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type kaas_twin_switch,%function
.globl kaas_twin_switch
.hidden kaas_twin_switch
kaas_twin_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size kaas_twin_switch,.-kaas_twin_switch
.p2align 4
.type kaas_twin_start,%function
.globl kaas_twin_start
.hidden kaas_twin_start
kaas_twin_start:
  .cfi_startproc
  .cfi_undefined x30
  mov x0, x19
  bl kaas_twin_fibre_entry
  brk #1
  .cfi_endproc
.size kaas_twin_start,.-kaas_twin_start
)");
#else
#error "the twin's fibres know x86-64 and aarch64 only"
#endif

extern "C" {
void kaas_twin_switch(void** from, void* to);
void kaas_twin_start();
}

namespace kaas_twin {

namespace {
thread_local Fibre* t_current = nullptr;
}

void fibre_entry(Fibre* fibre) {
  try {
    fibre->entry_(fibre->argument_);
  } catch (...) {
    fibre->failure_ = std::current_exception();
  }
  fibre->finished_ = true;
  Fibre::suspend();
  std::abort();  // a finished fibre is never resumed
}

extern "C" __attribute__((visibility("hidden"))) void kaas_twin_fibre_entry(Fibre* fibre) {
  fibre_entry(fibre);
}

void Fibre::prepare(void* stack_low, std::size_t stack_bytes, Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  failure_ = nullptr;
  finished_ = false;
  auto top = reinterpret_cast<std::uintptr_t>(stack_low) + stack_bytes;
  top &= ~std::uintptr_t{15};
#if defined(__x86_64__)
  // Popped by the switch: r15 r14 r13 r12 rbx rbp, then the return address; at kaas_twin_start the stack is
  // aligned.
  auto* frame = reinterpret_cast<void**>(top) - 9;
  for (int i = 0; i < 9; ++i) frame[i] = nullptr;
  frame[4] = this;
  frame[6] = reinterpret_cast<void*>(&kaas_twin_start);
#else
  auto* frame = reinterpret_cast<void**>(top) - 20;
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[0] = this;
  frame[11] = reinterpret_cast<void*>(&kaas_twin_start);
#endif
  stack_pointer_ = frame;
}

void Fibre::resume() {
  outer_ = t_current;
  t_current = this;
  kaas_twin_switch(&resumer_pointer_, stack_pointer_);
  t_current = outer_;
  if (finished_ && failure_) {
    std::exception_ptr failure = failure_;
    failure_ = nullptr;
    std::rethrow_exception(failure);
  }
}

void Fibre::suspend() {
  Fibre* self = t_current;
  kaas_twin_switch(&self->stack_pointer_, self->resumer_pointer_);
}

Fibre* Fibre::current() { return t_current; }

void Fibre::forget_current() { t_current = nullptr; }

StackPool::StackPool(std::size_t count, std::size_t bytes_each) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  usable_ = (bytes_each + page - 1) / page * page;
  stride_ = usable_ + page;
  count_ = count;
  void* mapping =
      mmap(nullptr, stride_ * count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(mapping);
  for (std::size_t i = 0; i < count; ++i) {
    if (mprotect(low(i), usable_, PROT_READ | PROT_WRITE) != 0) {
      munmap(mapping_, stride_ * count);
      throw std::bad_alloc();
    }
  }
}

StackPool::~StackPool() {
  if (mapping_ != nullptr) munmap(mapping_, stride_ * count_);
}

void* StackPool::low(std::size_t index) const { return mapping_ + index * stride_ + (stride_ - usable_); }

bool StackPool::in_guard(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  if (byte < mapping_ || byte >= mapping_ + stride_ * count_) return false;
  return static_cast<std::size_t>(byte - mapping_) % stride_ < stride_ - usable_;
}

}  // namespace kaas_twin
