// Clocks, shadow memory and reports of the happens-before check.
#include "happens_before.h"

#include <algorithm>

#include "engine_state.h"
#include "kaas_twin/simt_launch.h"
#include "text.h"

namespace kaas_twin {

__thread HappensBefore* running_check = nullptr;

namespace {

constexpr int kScalar = 0, kVector = 1, kCube = 2;
constexpr std::size_t kRecordsKept = 16;  // per cell; beyond it the oldest read is forgotten

std::uint32_t core_place(const Core& core) {
  return core.kind == CoreKind::kAic ? 0 : 1 + core.sub_block;
}

std::uint32_t key(std::uint32_t unit, int other, int id) {
  return (unit * static_cast<std::uint32_t>(kPipeCount) + static_cast<std::uint32_t>(other)) * 64 +
         static_cast<std::uint32_t>(id);
}

void join(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool conflict(Access one, Access other) {
  return one != other || one == Access::kWrite;
}

const char* verb(Access access, bool past) {
  switch (access) {
    case Access::kRead: return past ? "read" : "reads";
    case Access::kWrite: return past ? "wrote" : "writes";
    case Access::kZero: return past ? "cleared" : "clears";
    case Access::kAtomic: return past ? "atomically updated" : "atomically updates";
  }
  return "";
}

}  // namespace

ShadowPage& Shadow::page(std::uintptr_t number, std::uint64_t session) {
  auto& recent = recent_[number % kRecent];
  if (recent.number != number) {
    std::unique_ptr<ShadowPage>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<ShadowPage>();
    recent.number = number;
    recent.page = page.get();
  }
  if (recent.page->session != session) {
    for (ShadowCell& cell : recent.page->cells) cell.records.clear();
    recent.page->session = session;
  }
  return *recent.page;
}

std::uint16_t Shadow::intern(const char* instruction, const char* intrinsic) {
  const auto [found, is_new] =
      numbers_.try_emplace({instruction, intrinsic}, static_cast<std::uint16_t>(names_.size()));
  if (is_new) names_.emplace_back(instruction, intrinsic);
  return found->second;
}

std::string Shadow::name(std::uint16_t number) const {
  const auto& [instruction, intrinsic] = names_[number];
  if (intrinsic[0] == '\0') return instruction;
  if (instruction[0] == '\0') return intrinsic;
  return format("%s (in %s)", intrinsic, instruction);
}

HappensBefore::HappensBefore(Shadow& shadow, const std::vector<std::unique_ptr<Block>>& blocks,
                             std::size_t all_blocks)
    : shadow_(shadow), blocks_(blocks), session_(shadow.next_session()) {
  if (all_blocks > kMaximumCheckedBlocks)
    throw BlockFailure(format("the happens-before check takes at most %u blocks", kMaximumCheckedBlocks));
  base_ = blocks.front()->index * kUnitsPerBlock;
  const std::size_t units = blocks.size() * kUnitsPerBlock;
  clocks_.assign(units, Clock(units, 0));
  for (std::size_t i = 0; i < units; ++i) clocks_[i][i] = 1;
  finished_.assign(units, 0);
  issue_clocks_.assign(units / kPipeCount, std::make_shared<const Clock>(units, 0));
  last_issue_.assign(units, nullptr);
}

std::uint32_t HappensBefore::local(const Core& core, int slot) const {
  return core.block->index * kUnitsPerBlock - base_ + core_place(core) * kPipeCount +
         static_cast<std::uint32_t>(slot);
}

// Hands `unit`'s clock on; what the unit does from now on is not part of it.
void HappensBefore::release(std::uint32_t unit, Clock& into) {
  if (into.empty()) {
    into = clocks_[unit];
  } else {
    join(into, clocks_[unit]);
  }
  ++clocks_[unit][unit];
}

void HappensBefore::acquire(std::uint32_t unit, const Clock& from) {
  if (from.empty()) return;
  join(clocks_[unit], from);
  // Somebody has waited for this unit's work up to there, and this unit for that somebody.
  finished_[unit] = std::max(finished_[unit], from[unit]);
}

// After a wait: what the scalar stream has waited for holds for everything it issues later.
void HappensBefore::acquired(std::uint32_t unit, const Core& core, int slot) {
  if (slot != kScalar) return;
  auto handed = std::make_shared<Clock>(clocks_[unit]);
  (*handed)[unit] = 0;
  issue_clocks_[local(core, 0) / kPipeCount] = std::move(handed);
}

SharedClock HappensBefore::issued(const Core& core) { return issue_clocks_[local(core, 0) / kPipeCount]; }

void HappensBefore::begin(const Core& core, int slot, const SharedClock& issue, const char* instruction) {
  unit_ = local(core, slot);
  slot_ = slot;
  instruction_ = instruction;
  ++window_;
  thread_ = 0;
  if (issue != nullptr && last_issue_[unit_] != issue) {
    acquire(unit_, *issue);
    last_issue_[unit_] = issue;
  }
}

void HappensBefore::notify(const Core& core, int slot, int other, int id) {
  Clock handed;
  release(local(core, slot), handed);
  flags_[key(local(core, slot), other, id)].push_back(std::move(handed));
}

void HappensBefore::wait(const Core& core, int slot, int other, int id) {
  auto& queue = flags_[key(local(core, other), slot, id)];
  const std::uint32_t unit = local(core, slot);
  acquire(unit, queue.front());
  queue.pop_front();
  acquired(unit, core, slot);
}

void HappensBefore::unlock(const Core& core, int slot, int id) {
  Clock handed;
  release(local(core, slot), handed);
  unlocks_[key(local(core, slot), 0, id)].push_back(std::move(handed));
}

void HappensBefore::lock(const Core& core, int slot, int id, const std::uint32_t* unlocks_before) {
  const std::uint32_t unit = local(core, slot);
  for (int other = 0; other < kPipeCount; ++other) {
    if (other == slot || unlocks_before[other] == 0) continue;
    acquire(unit, unlocks_[key(local(core, other), 0, id)][unlocks_before[other] - 1]);
  }
  acquired(unit, core, slot);
}

void HappensBefore::intra_arrive(const Core& core, int slot, const Core& target, int id) {
  Clock handed;
  release(local(core, slot), handed);
  intra_[key(local(target, 0), 0, id)].push_back(std::move(handed));
}

void HappensBefore::intra_wait(const Core& core, int slot, int id) {
  auto& queue = intra_[key(local(core, 0), 0, id)];
  const std::uint32_t unit = local(core, slot);
  acquire(unit, queue.front());
  queue.pop_front();
  acquired(unit, core, slot);
}

// The round-th arrival of every core of the kind opens the round-th wait of every one of them.
void HappensBefore::inter_arrive(const Core& core, int slot, int id, std::uint32_t round) {
  auto& rounds = rounds_[static_cast<std::uint32_t>(core.kind) * 64 + static_cast<std::uint32_t>(id)];
  if (rounds.size() < round) rounds.resize(round);
  release(local(core, slot), rounds[round - 1]);
}

void HappensBefore::inter_wait(const Core& core, int slot, int id) {
  auto& rounds = rounds_[static_cast<std::uint32_t>(core.kind) * 64 + static_cast<std::uint32_t>(id)];
  const std::uint32_t unit = local(core, slot);
  acquire(unit, rounds[rounds_waited_[key(local(core, 0), 0, id)]++]);
  acquired(unit, core, slot);
}

void HappensBefore::unit_flag_write(const Core& core, std::uint32_t accumulator) {
  acquire(local(core, kCube), accumulators_[{local(core, 0), accumulator}].free);
}

void HappensBefore::unit_flag_written(const Core& core, std::uint32_t accumulator) {
  Clock& full = accumulators_[{local(core, 0), accumulator}].full;
  full.clear();
  release(local(core, kCube), full);
}

void HappensBefore::unit_flag_read(const Core& core, std::uint32_t accumulator) {
  acquire(local(core, kPipeCount - 1), accumulators_[{local(core, 0), accumulator}].full);
}

void HappensBefore::unit_flag_released(const Core& core, std::uint32_t accumulator) {
  Clock& free = accumulators_[{local(core, 0), accumulator}].free;
  free.clear();
  release(local(core, kPipeCount - 1), free);
}

void HappensBefore::pipe_barrier(const Core& core, int slot) {
  const std::uint32_t unit = local(core, slot);
  finished_[unit] = clocks_[unit][unit];
  ++clocks_[unit][unit];
}

void HappensBefore::drain(const Core& core) {
  Clock all;
  for (int slot = 0; slot < kPipeCount; ++slot) release(local(core, slot), all);
  for (int slot = 0; slot < kPipeCount; ++slot) acquire(local(core, slot), all);
  acquired(local(core, kScalar), core, kScalar);
}

// Whether the running unit's clock says that the earlier access has ended.
bool HappensBefore::ordered(const AccessRecord& earlier) const {
  const std::uint32_t unit = earlier.unit - base_;
  if (earlier.unit < base_ || unit >= clocks_.size()) return false;  // a block without any order to this one
  if (unit != unit_) return earlier.clock <= clocks_[unit_][unit];
  // Within a pipe: the scalar stream, vector functions and large products run one after another; copies and
  // small products may overlap.
  if (slot_ == kScalar || slot_ == kVector) return true;
  if (slot_ == kCube && !overlapping_) return true;
  return earlier.clock <= finished_[unit];
}

// Whether the running vector function may do this access before its own earlier one.
bool HappensBefore::overtaken(const AccessRecord& earlier, Access access) const {
  if (slot_ != kVector || earlier.unit - base_ != unit_ || earlier.window != window_) return false;
  if (vector_) return earlier.access == Access::kWrite && access == Access::kRead && earlier.thread == 0;
  // Threads of one warp go together; other warps meet at barriers only.
  return earlier.thread != 0 && thread_ != 0 &&
         (earlier.thread - 1u) / simt::kWarpLanes != (thread_ - 1u) / simt::kWarpLanes;
}

void HappensBefore::touch_cell(ShadowCell& cell, AccessRecord access, std::uintptr_t address) {
  auto& records = cell.records;
  if (records.size() == 1) {
    const AccessRecord& only = records.front();
    const bool again = only.unit == access.unit && only.access == access.access && only.clock == access.clock &&
                       only.window == access.window && only.thread == access.thread;
    if (again && (only.bytes & access.bytes) == access.bytes) return;
  }
  for (const AccessRecord& earlier : records) {
    if ((earlier.bytes & access.bytes) == 0 || !conflict(earlier.access, access.access)) continue;
    const bool in_function = overtaken(earlier, access.access);
    if ((in_function || !ordered(earlier)) && finding_.empty()) report(earlier, access, address, in_function);
  }
  // A write replaces what was known of these bytes; another access replaces its unit's own last one.
  // (Of the warps of one function that read a byte, two are enough to clash with any other warp.)
  int warps = 0;
  const auto replaced = [&](AccessRecord& earlier) {
    bool same = earlier.unit == access.unit && earlier.access == access.access;
    if (same && earlier.window == access.window && earlier.thread != access.thread) same = ++warps > 1;
    if (access.access == Access::kWrite || access.access == Access::kZero || same) earlier.bytes &= ~access.bytes;
    if (same && earlier.clock == access.clock && earlier.window == access.window &&
        earlier.name == access.name) {
      access.bytes |= earlier.bytes;
      return true;
    }
    return earlier.bytes == 0;
  };
  records.erase(std::remove_if(records.begin(), records.end(), replaced), records.end());
  if (records.size() >= kRecordsKept) {
    const auto read = std::find_if(records.begin(), records.end(), [](const AccessRecord& record) {
      return record.access == Access::kRead;
    });
    records.erase(read != records.end() ? read : records.begin());
  }
  records.push_back(access);
}

void HappensBefore::touch(const void* address, std::size_t bytes, Access access, const char* intrinsic) {
  if (bytes == 0) return;
  if (instruction_ != last_instruction_ || intrinsic != last_intrinsic_) {
    last_name_ = shadow_.intern(instruction_, intrinsic);
    last_instruction_ = instruction_;
    last_intrinsic_ = intrinsic;
  }
  AccessRecord record{};
  record.clock = clocks_[unit_][unit_];
  record.window = window_;
  record.unit = static_cast<std::uint16_t>(base_ + unit_);
  record.name = last_name_;
  record.thread = thread_;
  record.access = access;
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + bytes;
  const bool on_chip = Session::current()->on_chip(address);
  while (at < end) {
    ShadowPage& page = shadow_.page(at / kShadowPageBytes, on_chip ? session_ : 0);
    const std::uintptr_t page_end = std::min(end, (at / kShadowPageBytes + 1) * kShadowPageBytes);
    while (at < page_end) {
      const std::uintptr_t first = at % kCellBytes;
      const std::uintptr_t count = std::min(page_end - at, kCellBytes - first);
      record.bytes = static_cast<std::uint32_t>(((std::uint64_t{1} << count) - 1) << first);
      touch_cell(page.cells[at % kShadowPageBytes / kCellBytes], record, at);
      at += count;
    }
  }
}

void HappensBefore::touch_overlapping(const void* address, std::size_t bytes, Access access) {
  overlapping_ = true;
  touch(address, bytes, access);
  overlapping_ = false;
}

void HappensBefore::touch_vector(const void* address, std::size_t bytes, Access access,
                                 const char* intrinsic) {
  vector_ = true;
  touch(address, bytes, access, intrinsic);
  vector_ = false;
}

void HappensBefore::touch_directly(const void* address, std::size_t bytes, Access access) {
  const Session& session = *Session::current();
  // What a SIMD vector function loads and stores goes through intrinsics; the rest of it is registers.
  if (slot_ != kScalar && (slot_ != kVector || simt::running_thread == nullptr)) return;
  if (session.on_stack(address)) return;
  if (slot_ == kVector) {
    const simt::ThreadView& view = *simt::running_thread;
    thread_ = static_cast<std::uint16_t>(
        1 + view.thread.x + view.block_size.x * (view.thread.y + view.block_size.y * view.thread.z));
  }
  const char* what = access == Access::kRead ? "a load" : access == Access::kWrite ? "a store" : "an atomic";
  touch(address, bytes, access, what);
  thread_ = 0;
}

std::string HappensBefore::unit_text(std::uint32_t unit) const {
  const std::uint32_t core = unit % kUnitsPerBlock / kPipeCount;
  const char* const names[] = {"AIC", "AIV0", "AIV1"};
  return format("block %u, %s, %s", unit / kUnitsPerBlock, names[core],
                pipe_name(static_cast<int>(unit % kPipeCount)));
}

std::string HappensBefore::memory_text(std::uintptr_t address) const {
  for (const auto& block : blocks_) {
    for (const auto& core : block->cores) {
      const struct {
        const std::uint8_t* base;
        std::size_t bytes;
        const char* name;
      } memories[] = {{core->l1, kL1Bytes, "L1"},
                      {core->l0a, kL0ABytes, "L0A"},
                      {core->l0b, kL0BBytes, "L0B"},
                      {core->l0c, kL0CBytes, "L0C"},
                      {core->l0a_scales, kScaleBytes, "the scales of L0A"},
                      {core->l0b_scales, kScaleBytes, "the scales of L0B"},
                      {core->ub, kUbBytes, "UB"}};
      for (const auto& memory : memories) {
        if (memory.base == nullptr) continue;
        const std::uintptr_t offset = address - reinterpret_cast<std::uintptr_t>(memory.base);
        if (offset < memory.bytes)
          return format("%s of %s at offset %llu", memory.name, core->label().c_str(),
                        static_cast<unsigned long long>(offset));
      }
    }
  }
  return format("GM at address 0x%llx", static_cast<unsigned long long>(address));
}

void HappensBefore::report(const AccessRecord& earlier, const AccessRecord& access, std::uintptr_t cell,
                           bool in_function) {
  const std::uint32_t shared = earlier.bytes & access.bytes;
  const std::uintptr_t address =
      cell / kCellBytes * kCellBytes + static_cast<std::uintptr_t>(__builtin_ctz(shared));
  const char* kind = earlier.access == Access::kRead  ? "WAR"
                     : access.access == Access::kRead ? "RAW"
                                                      : "WAW";
  const char* why = "and no flag, lock, counter or barrier orders the two";
  if (in_function && vector_) why = "earlier in the same vector function, and no asc_mem_bar orders the two";
  if (in_function && !vector_) why = "in another warp of the same function, and no asc_syncthreads is between";
  if (!in_function && earlier.unit == access.unit)
    why = "earlier in the same pipe, and no asc_sync_pipe or pair of flags waits for its end";
  finding_ = format("%s, %s: race (%s): %s %s what %s, %s %s, %s", unit_text(access.unit).c_str(),
                    shadow_.name(access.name).c_str(), kind, verb(access.access, false),
                    memory_text(address).c_str(), unit_text(earlier.unit).c_str(),
                    shadow_.name(earlier.name).c_str(), verb(earlier.access, true), why);
}

}  // namespace kaas_twin

// What an image compiled for the check calls at every load and store of its own (g++ -fsanitize=thread).
#define KAAS_TWIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
inline void direct(const void* address, std::size_t bytes, kaas_twin::Access access) {
  kaas_twin::HappensBefore* check = kaas_twin::running_check;
  if (check != nullptr) check->touch_directly(address, bytes, access);
}
}  // namespace

#define KAAS_TWIN_DIRECT(bytes)                                                                              \
  KAAS_TWIN_EXPORT void __tsan_read##bytes(void* address) {                                                  \
    direct(address, bytes, kaas_twin::Access::kRead);                                                        \
  }                                                                                                          \
  KAAS_TWIN_EXPORT void __tsan_write##bytes(void* address) {                                                 \
    direct(address, bytes, kaas_twin::Access::kWrite);                                                       \
  }                                                                                                          \
  KAAS_TWIN_EXPORT void __tsan_unaligned_read##bytes(void* address) {                                        \
    direct(address, bytes, kaas_twin::Access::kRead);                                                        \
  }                                                                                                          \
  KAAS_TWIN_EXPORT void __tsan_unaligned_write##bytes(void* address) {                                       \
    direct(address, bytes, kaas_twin::Access::kWrite);                                                       \
  }
KAAS_TWIN_DIRECT(1)
KAAS_TWIN_DIRECT(2)
KAAS_TWIN_DIRECT(4)
KAAS_TWIN_DIRECT(8)
KAAS_TWIN_DIRECT(16)
#undef KAAS_TWIN_DIRECT
KAAS_TWIN_EXPORT void __tsan_read_range(void* address, unsigned long bytes) {
  direct(address, bytes, kaas_twin::Access::kRead);
}
KAAS_TWIN_EXPORT void __tsan_write_range(void* address, unsigned long bytes) {
  direct(address, bytes, kaas_twin::Access::kWrite);
}
KAAS_TWIN_EXPORT void __tsan_vptr_update(void** address, void*) {
  direct(address, sizeof(void*), kaas_twin::Access::kWrite);
}
KAAS_TWIN_EXPORT void __tsan_init() {}
KAAS_TWIN_EXPORT void __tsan_func_entry(void*) {}
KAAS_TWIN_EXPORT void __tsan_func_exit() {}
