// The scheduler of SIMT threads.
//
// Threads of a block start in order on worker fibres. A worker runs thread after thread until one blocks; the blocked
// thread then owns that worker until it ends, and the next free worker goes on with the next thread. Worker stacks stay
// with the host thread, so a launch allocates nothing once its size was seen before.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "engine_state.h"
#include "kaas_twin/engine.h"
#include "kaas_twin/fibre.h"
#include "kaas_twin/simt_launch.h"
#include "kaas_twin/simt_warp.h"

namespace kaas_twin::simt {

__thread const ThreadView* running_thread = nullptr;

namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kStacksPerChunk = 64;
constexpr std::size_t kChunkBytes = kStackBytes * (kStacksPerChunk + 1);  // the first one stays inaccessible
constexpr std::uint64_t kCanary = 0x6b61617374616e79;

enum class State : std::uint8_t { kFresh, kRunning, kAtBarrier, kAtExchange, kExited };

class Scheduler;

struct Worker {
  Fibre fibre;
  Scheduler* scheduler = nullptr;
  unsigned char* stack = nullptr;
};

struct Thread {
  ThreadView view;
  State state = State::kFresh;
  Worker* worker = nullptr;  // while blocked
  Finish finish = nullptr;   // of the exchange it waits for
  std::uint32_t active = 0;  // the lanes of its last exchange
};

/// Two sets of slots: a lane may leave its next value before a slower lane has read the last ones.
struct Warp {
  Slots slots[2];
  std::uint32_t generation = 0;
};

class Scheduler {
 public:
  bool on_stack(const void* address) const {
    const auto* byte = static_cast<const char*>(address);
    return std::any_of(chunks_.begin(), chunks_.end(), [byte](const void* chunk) {
      return byte >= static_cast<const char*>(chunk) && byte < static_cast<const char*>(chunk) + kChunkBytes;
    });
  }

  ~Scheduler() {
    for (void* chunk : chunks_) munmap(chunk, kChunkBytes);
  }

  void launch(Coordinates size, Body body, void* arguments);
  void wait_at_barrier();
  Exchanged wait_for_exchange(Finish finish, const void* value, std::size_t bytes);

 private:
  static void worker_entry(void* argument);

  void begin(Coordinates size);
  void order_warps();
  void run_warp(std::uint32_t warp);
  bool complete_exchanges(std::uint32_t warp, std::uint32_t first, std::uint32_t last);
  void resume(Thread& thread);
  Worker& free_worker();
  void add_workers();
  void prepare(Worker& worker);
  void check_stacks() const;
  [[noreturn]] void report_divergence() const;

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::uint32_t> warp_order_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> free_;
  std::vector<void*> chunks_;

  Body body_ = nullptr;
  void* arguments_ = nullptr;
  Thread* current_ = nullptr;
  std::uint32_t next_fresh_ = 0, fresh_end_ = 0;  // threads of the running warp that have not started
  std::uint64_t launches_ = 0;
  bool interrupted_ = false;  // a launch that failed leaves its workers in the middle of something
};

Scheduler& scheduler() {
  static thread_local Scheduler instance;
  return instance;
}

/// running_thread is null again however a launch ends.
struct RunningThreadReset {
  ~RunningThreadReset() { running_thread = nullptr; }
};

void Scheduler::worker_entry(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  Scheduler& self = *worker.scheduler;
  for (;;) {
    while (self.next_fresh_ < self.fresh_end_) {
      Thread& thread = self.threads_[self.next_fresh_++];
      thread.state = State::kRunning;
      thread.worker = &worker;
      self.current_ = &thread;
      running_thread = &thread.view;
      self.body_(self.arguments_);
      // `thread` may have been resumed in between, so only it knows which thread ends here.
      thread.state = State::kExited;
      thread.worker = nullptr;
    }
    self.free_.push_back(&worker);
    Fibre::suspend();
  }
}

void Scheduler::prepare(Worker& worker) {
  std::memcpy(worker.stack, &kCanary, sizeof(kCanary));
  // Stacks that end at the same offset of a page would all compete for the same cache sets.
  const std::size_t number = reinterpret_cast<std::uintptr_t>(worker.stack) / kStackBytes;
  const std::size_t colour = number % 61 * 64;
  worker.fibre.prepare(worker.stack, kStackBytes - colour, worker_entry, &worker);
}

void Scheduler::add_workers() {
  void* chunk = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (chunk == MAP_FAILED) fail("no memory for the stacks of SIMT threads");
  chunks_.push_back(chunk);
  mprotect(chunk, kStackBytes, PROT_NONE);
  for (std::size_t i = 1; i <= kStacksPerChunk; ++i) {
    auto worker = std::make_unique<Worker>();
    worker->scheduler = this;
    worker->stack = static_cast<unsigned char*>(chunk) + i * kStackBytes;
    prepare(*worker);
    free_.push_back(worker.get());
    workers_.push_back(std::move(worker));
  }
}

Worker& Scheduler::free_worker() {
  if (free_.empty()) add_workers();
  Worker& worker = *free_.back();
  free_.pop_back();
  return worker;
}

void Scheduler::resume(Thread& thread) {
  thread.state = State::kRunning;
  current_ = &thread;
  running_thread = &thread.view;
  thread.worker->fibre.resume();
}

void Scheduler::check_stacks() const {
  for (const auto& worker : workers_) {
    if (std::memcmp(worker->stack, &kCanary, sizeof(kCanary)) != 0) {
      fail("a SIMT thread used more than %zu KiB of stack", kStackBytes / 1024);
    }
  }
}

void Scheduler::begin(Coordinates size) {
  const std::uint64_t count = std::uint64_t{size.x} * size.y * size.z;
  if (count == 0 || count > kMaximumThreads) {
    fail("asc_vf_call: %llu threads; a block has 1 to %u", static_cast<unsigned long long>(count), kMaximumThreads);
  }
  if (interrupted_) {
    free_.clear();
    for (auto& worker : workers_) {
      prepare(*worker);
      free_.push_back(worker.get());
    }
  }
  interrupted_ = true;
  ++launches_;
  threads_.resize(count);
  warps_.resize((count + kWarpLanes - 1) / kWarpLanes);
  const Coordinates block{block_index(), 0, 0};
  const Coordinates grid{block_count(), 1, 1};
  for (std::uint32_t i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    thread.state = State::kFresh;
    thread.worker = nullptr;
    thread.view = {{i % size.x, i / size.x % size.y, i / (size.x * size.y)}, block, size, grid, i % kWarpLanes};
  }
}

void Scheduler::order_warps() {
  warp_order_.resize(warps_.size());
  std::iota(warp_order_.begin(), warp_order_.end(), 0u);
  const Session* session = Session::current();
  if (session == nullptr || session->plan().schedule != Schedule::kAdversarial) return;
  // Warps have no order between barriers: an adversarial run takes another one in every launch.
  std::uint64_t state = session->plan().seed * 0x9e3779b97f4a7c15u + launches_;
  for (std::size_t i = warp_order_.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(warp_order_[i - 1], warp_order_[(state >> 33) % i]);
  }
}

void Scheduler::launch(Coordinates size, Body body, void* arguments) {
  const RunningThreadReset reset;
  begin(size);
  order_warps();
  body_ = body;
  arguments_ = arguments;
  for (;;) {
    for (const std::uint32_t warp : warp_order_) run_warp(warp);
    std::size_t waiting = 0;
    for (const Thread& thread : threads_) waiting += thread.state == State::kAtBarrier ? 1 : 0;
    if (waiting == 0) break;
    if (waiting != threads_.size()) report_divergence();
    if (running_check != nullptr) running_check->thread_barrier();
  }
  check_stacks();
  interrupted_ = false;
}

/// Runs a warp until every lane waits at the barrier or has exited.
void Scheduler::run_warp(std::uint32_t warp) {
  const std::uint32_t first = warp * kWarpLanes;
  const std::uint32_t last = std::min(first + kWarpLanes, static_cast<std::uint32_t>(threads_.size()));
  if (threads_[first].state == State::kFresh) {
    next_fresh_ = first;
    fresh_end_ = last;
    while (next_fresh_ < fresh_end_) free_worker().fibre.resume();
  } else {
    for (std::uint32_t i = first; i < last; ++i) {
      if (threads_[i].state == State::kAtBarrier) resume(threads_[i]);
    }
  }
  while (complete_exchanges(warp, first, last)) {
  }
}

/// Completes the warp calls that lanes wait for and lets these lanes go on. False when none waits.
bool Scheduler::complete_exchanges(std::uint32_t warp, std::uint32_t first, std::uint32_t last) {
  std::uint32_t waiting = 0;
  for (std::uint32_t i = first; i < last; ++i) {
    if (threads_[i].state == State::kAtExchange) waiting |= 1u << (i - first);
  }
  if (waiting == 0) return false;
  Slots& slots = warps_[warp].slots[warps_[warp].generation & 1];
  for (std::uint32_t rest = waiting; rest != 0;) {
    const Finish finish = threads_[first + static_cast<std::uint32_t>(__builtin_ctz(rest))].finish;
    std::uint32_t active = 0;
    for (std::uint32_t i = 0; i < last - first; ++i) {
      if (((rest >> i) & 1u) != 0 && threads_[first + i].finish == finish) active |= 1u << i;
    }
    finish(slots, active);
    for (std::uint32_t i = 0; i < last - first; ++i) {
      if (((active >> i) & 1u) != 0) threads_[first + i].active = active;
    }
    rest &= ~active;
  }
  ++warps_[warp].generation;
  for (std::uint32_t i = 0; i < last - first; ++i) {
    if (((waiting >> i) & 1u) != 0) resume(threads_[first + i]);
  }
  return true;
}

void Scheduler::wait_at_barrier() {
  current_->state = State::kAtBarrier;
  Fibre::suspend();
}

Exchanged Scheduler::wait_for_exchange(Finish finish, const void* value, std::size_t bytes) {
  Thread& thread = *current_;
  Warp& warp = warps_[static_cast<std::size_t>(&thread - threads_.data()) / kWarpLanes];
  Slots& slots = warp.slots[warp.generation & 1];
  std::memcpy(slots.value[thread.view.lane], value, bytes);
  thread.finish = finish;
  thread.state = State::kAtExchange;
  Fibre::suspend();
  return {&slots, thread.active};
}

void Scheduler::report_divergence() const {
  const auto at = [this](State state) {
    return static_cast<std::size_t>(std::find_if(threads_.begin(), threads_.end(),
                                                 [state](const Thread& thread) { return thread.state == state; }) -
                                    threads_.begin());
  };
  const auto exited = std::count_if(threads_.begin(), threads_.end(),
                                    [](const Thread& thread) { return thread.state == State::kExited; });
  fail(
      "asc_syncthreads: barrier divergence: thread %zu waits, but %zd of %zu threads ended without arriving, the "
      "first of them thread %zu",
      at(State::kAtBarrier), static_cast<std::ptrdiff_t>(exited), threads_.size(), at(State::kExited));
}

}  // namespace

void launch(Coordinates block_size, Body body, void* arguments) { scheduler().launch(block_size, body, arguments); }

bool on_stack(const void* address) { return scheduler().on_stack(address); }

void barrier() {
  current("asc_syncthreads");
  scheduler().wait_at_barrier();
}

Exchanged exchange(Finish finish, const void* value, std::size_t bytes) {
  current("a warp function");
  return scheduler().wait_for_exchange(finish, value, bytes);
}

}  // namespace kaas_twin::simt
