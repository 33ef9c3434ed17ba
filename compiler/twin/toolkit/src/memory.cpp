// On-chip memories of one block, with inaccessible areas around each UB, and their recycling.
#include <pthread.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "engine_state.h"

namespace kaas_twin {

namespace {

constexpr std::size_t kGuardBytes = 1024 * 1024;
constexpr std::size_t kUbStride = kUbBytes + kGuardBytes;
constexpr std::size_t kUbArea = 3 * kUbStride + kGuardBytes;  // guard UB0 guard UB1 guard shadow guard
constexpr std::size_t kCubeBytes = kL1Bytes + kL0ABytes + kL0BBytes + kL0CBytes + 2 * kScaleBytes;
constexpr std::size_t kScalarStackBytes = 256 * 1024;

std::vector<std::unique_ptr<Arena>>& pool() {
  static auto* arenas =
      new std::vector<std::unique_ptr<Arena>>;  // never destroyed: threads may outlive static order
  return *arenas;
}

pthread_mutex_t g_pool_mutex = PTHREAD_MUTEX_INITIALIZER;

// A child must not inherit a mutex that another thread of the parent held.
__attribute__((constructor)) void protect_fork() {
  pthread_atfork([] { pthread_mutex_lock(&g_pool_mutex); }, [] { pthread_mutex_unlock(&g_pool_mutex); },
                 [] { pthread_mutex_unlock(&g_pool_mutex); });
}

}  // namespace

Arena::Arena() : stacks_(3, kScalarStackBytes) {
  void* area =
      mmap(nullptr, kUbArea + kCubeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::uint8_t*>(area);
  cube_ = mapping_ + kUbArea;
  bool usable = mprotect(cube_, kCubeBytes, PROT_READ | PROT_WRITE) == 0;
  for (int which = 0; which < 2; ++which) {
    usable = usable && mprotect(ub(which), kUbBytes, PROT_READ | PROT_WRITE) == 0;
  }
  if (!usable) {
    munmap(mapping_, kUbArea + kCubeBytes);
    throw std::bad_alloc();
  }
}

Arena::~Arena() { munmap(mapping_, kUbArea + kCubeBytes); }

std::uint8_t* Arena::ub(int which) const {
  return mapping_ + kGuardBytes + static_cast<std::size_t>(which) * kUbStride;
}

void Arena::attach(Block& block) {
  if (block.aic != nullptr) {
    std::memset(cube_, 0xff, kCubeBytes);
    block.aic->l1 = cube_;
    block.aic->l0a = cube_ + kL1Bytes;
    block.aic->l0b = block.aic->l0a + kL0ABytes;
    block.aic->l0c = block.aic->l0b + kL0BBytes;
    block.aic->l0a_scales = block.aic->l0c + kL0CBytes;
    block.aic->l0b_scales = block.aic->l0a_scales + kScaleBytes;
    block.aic->ub = ub(2);
  }
  for (int which = 0; which < 2; ++which) {
    Core* core = block.aiv[static_cast<std::size_t>(which)];
    if (core == nullptr) continue;
    std::memset(ub(which), 0xff, kUbBytes);
    core->ub = ub(which);
  }
}

bool Arena::on_chip(const void* address) const {
  const auto* byte = static_cast<const std::uint8_t*>(address);
  return byte >= mapping_ && byte < mapping_ + kUbArea + kCubeBytes;
}

bool Arena::on_stack(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  const auto* last = static_cast<const char*>(stacks_.low(stacks_.count() - 1)) + stacks_.bytes();
  return byte >= static_cast<const char*>(stacks_.low(0)) && byte < last;
}

bool Arena::describe_fault(const void* address, std::string& text) const {
  if (stacks_.in_guard(address)) {
    text = "the scalar stack overflowed";
    return true;
  }
  const auto* byte = static_cast<const std::uint8_t*>(address);
  if (byte < mapping_ || byte >= mapping_ + kUbArea) return false;
  char line[160];
  for (int which = 0; which < 3; ++which) {
    const auto offset = static_cast<long long>(byte - ub(which));
    const auto half = static_cast<long long>(kGuardBytes / 2);
    if (offset >= static_cast<long long>(kUbBytes) + half || offset < -half) continue;
    if (which == 2) {
      std::snprintf(line, sizeof(line), "the AIC dereferences UB offset %lld; it has no UB", offset);
    } else {
      std::snprintf(line, sizeof(line), "out of range on UB of AIV%d: offset %lld exceeds its %zu bytes",
                    which, offset, kUbBytes);
    }
    text = line;
    return true;
  }
  text = "access between the on-chip memories";
  return true;
}

std::unique_ptr<Arena> take_arena() {
  pthread_mutex_lock(&g_pool_mutex);
  std::unique_ptr<Arena> arena;
  if (!pool().empty()) {
    arena = std::move(pool().back());
    pool().pop_back();
  }
  pthread_mutex_unlock(&g_pool_mutex);
  return arena != nullptr ? std::move(arena) : std::make_unique<Arena>();
}

void give_arena(std::unique_ptr<Arena> arena) {
  constexpr std::size_t kKept = 16;
  pthread_mutex_lock(&g_pool_mutex);
  if (pool().size() < kKept) pool().push_back(std::move(arena));
  pthread_mutex_unlock(&g_pool_mutex);
}

}  // namespace kaas_twin
