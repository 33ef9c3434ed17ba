// Stackful coroutines with an own context switch (x86-64 and aarch64), used by the scalar streams of the
// emulated cores and by the threads of a SIMT function.
#pragma once

#include <cstddef>
#include <exception>

namespace kaas_twin {

// A coroutine which runs on memory given by its owner. A fibre stays on the host thread that first resumed
// it. resume() may be called from another fibre; suspend() goes back to whoever called resume().
class Fibre {
 public:
  using Entry = void (*)(void* argument);

  Fibre() = default;
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // Makes the fibre ready to run entry(argument) from its beginning. Whatever it was doing before is dropped
  // without unwinding, so a blocked fibre can be abandoned or reused.
  void prepare(void* stack_low, std::size_t stack_bytes, Entry entry, void* argument);

  // Runs until the next suspend() or the end of entry. An exception that leaves entry ends the fibre and is
  // rethrown here.
  void resume();

  // Goes back to the caller of resume(). Only inside a running fibre.
  static void suspend();

  // The fibre now running on this host thread, or nullptr.
  static Fibre* current();

  // Tells the host thread that no fibre runs on it any more: after a fault took it off a fibre's stack.
  static void forget_current();

  bool finished() const { return finished_; }

 private:
  void* stack_pointer_ = nullptr;    // of the suspended fibre
  void* resumer_pointer_ = nullptr;  // of the suspended resumer
  Fibre* outer_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  std::exception_ptr failure_;
  bool finished_ = true;

  friend void fibre_entry(Fibre* fibre);
};

// Equal stacks in one mapping, each above an inaccessible page, so that an overflow is a fault and not a
// corruption. Pages are backed only when touched.
class StackPool {
 public:
  StackPool(std::size_t count, std::size_t bytes_each);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  void* low(std::size_t index) const;
  std::size_t bytes() const { return usable_; }
  std::size_t count() const { return count_; }
  bool in_guard(const void* address) const;

 private:
  char* mapping_ = nullptr;
  std::size_t count_ = 0;
  std::size_t stride_ = 0;
  std::size_t usable_ = 0;
};

}  // namespace kaas_twin
