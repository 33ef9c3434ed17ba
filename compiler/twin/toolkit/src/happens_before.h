// The happens-before check: which memory accesses of a launch does nothing order?
//
// Every pipe of every core has a vector clock. Flags, locks, counters, unit flags and barriers carry clocks from
// one pipe to another; a shadow of the memory remembers who touched which byte when. Two accesses to one byte, at
// least one of which writes, are a race unless the clocks order them: whatever the order in which this run
// happened to execute them.
//
// Scalar code is a pipe (S) of its own. Issuing an instruction hands on what the scalar stream had waited for, but
// not its own loads and stores: only flags from and to S order those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kaas_twin {

struct Core;
struct Block;

// Reads do not race with reads, atomic updates not with atomic updates, and zeros not with zeros.
enum class Access : std::uint8_t { kRead, kWrite, kAtomic, kZero };

using Clock = std::vector<std::uint32_t>;  // by unit
using SharedClock = std::shared_ptr<const Clock>;

// Who touched some bytes of a cell, and when.
struct AccessRecord {
  std::uint32_t clock;   // the unit's own clock
  std::uint32_t bytes;   // one bit per byte of the cell
  std::uint32_t window;  // stretch between barriers inside one vector function
  std::uint16_t unit;
  std::uint16_t name;
  std::uint16_t thread;  // of a SIMT function, from 1; 0 elsewhere
  Access access;
};

inline constexpr std::size_t kCellBytes = 32;
inline constexpr std::size_t kShadowPageBytes = 4096;

struct ShadowCell {
  std::vector<AccessRecord> records;
};

struct ShadowPage {
  std::uint64_t session = 0;  // 0: of GM, which outlives a session
  ShadowCell cells[kShadowPageBytes / kCellBytes];
};

// What a whole launch remembers of the memory it touched, by host address.
class Shadow {
 public:
  ShadowPage& page(std::uintptr_t number, std::uint64_t session);
  std::uint64_t next_session() { return ++sessions_; }
  std::uint16_t intern(const char* instruction, const char* intrinsic);
  std::string name(std::uint16_t number) const;

 private:
  static constexpr std::size_t kRecent = 256;
  std::unordered_map<std::uintptr_t, std::unique_ptr<ShadowPage>> pages_;
  struct {
    std::uintptr_t number = ~std::uintptr_t{0};
    ShadowPage* page = nullptr;
  } recent_[kRecent];
  std::uint64_t sessions_ = 0;
  std::vector<std::pair<const char*, const char*>> names_;
  std::map<std::pair<const char*, const char*>, std::uint16_t> numbers_;
};

inline constexpr std::uint32_t kUnitsPerBlock = 21;  // AIC, AIV0, AIV1 with seven pipes each
inline constexpr std::uint32_t kMaximumCheckedBlocks = 65535 / kUnitsPerBlock;

// The clocks of one session (one block, or all blocks of a kernel with inter-block flags).
class HappensBefore {
 public:
  HappensBefore(Shadow& shadow, const std::vector<std::unique_ptr<Block>>& blocks, std::size_t all_blocks);

  // Synchronisation, called when the step is carried out.
  SharedClock issued(const Core& core);
  void begin(const Core& core, int slot, const SharedClock& issue, const char* instruction);
  void notify(const Core& core, int slot, int other, int id);
  void wait(const Core& core, int slot, int other, int id);
  void unlock(const Core& core, int slot, int id);
  void lock(const Core& core, int slot, int id, const std::uint32_t* unlocks_before);
  void intra_arrive(const Core& core, int slot, const Core& target, int id);
  void intra_wait(const Core& core, int slot, int id);
  void inter_arrive(const Core& core, int slot, int id, std::uint32_t round);
  void inter_wait(const Core& core, int slot, int id);
  void unit_flag_write(const Core& core, std::uint32_t accumulator);
  void unit_flag_written(const Core& core, std::uint32_t accumulator);
  void unit_flag_read(const Core& core, std::uint32_t accumulator);
  void unit_flag_released(const Core& core, std::uint32_t accumulator);
  void pipe_barrier(const Core& core, int slot);
  void drain(const Core& core);

  // Memory. `intrinsic` is the part of the running instruction that touches it, "" when it is the whole.
  void touch(const void* address, std::size_t bytes, Access access, const char* intrinsic = "");
  // The accumulator of a product that may start before an earlier one of PIPE_M has ended.
  void touch_overlapping(const void* address, std::size_t bytes, Access access);
  // By an instruction of a SIMD vector function, where stores and loads may pass each other.
  void touch_vector(const void* address, std::size_t bytes, Access access, const char* intrinsic);
  // A load or store in the text of scalar code or of a SIMT function.
  void touch_directly(const void* address, std::size_t bytes, Access access);
  void vector_barrier() { ++window_; }  // vector loads now see the vector stores before it
  void thread_barrier() { ++window_; }

  // The first race found; empty while there is none.
  const std::string& finding() const { return finding_; }

 private:
  struct Accumulator {
    Clock full, free;
  };

  std::uint32_t local(const Core& core, int slot) const;
  Clock& clock(const Core& core, int slot) { return clocks_[local(core, slot)]; }
  void release(std::uint32_t unit, Clock& into);
  void acquire(std::uint32_t unit, const Clock& from);
  void acquired(std::uint32_t unit, const Core& core, int slot);
  bool ordered(const AccessRecord& earlier) const;
  bool overtaken(const AccessRecord& earlier, Access access) const;
  void touch_cell(ShadowCell& cell, AccessRecord access, std::uintptr_t address);
  void report(const AccessRecord& earlier, const AccessRecord& access, std::uintptr_t cell, bool in_function);
  std::string unit_text(std::uint32_t unit) const;
  std::string memory_text(std::uintptr_t address) const;

  Shadow& shadow_;
  const std::vector<std::unique_ptr<Block>>& blocks_;
  std::uint64_t session_;
  std::uint32_t base_ = 0;  // number of the first unit
  std::vector<Clock> clocks_;
  std::vector<std::uint32_t> finished_;  // by unit: own clock up to which everything is known to have ended
  std::vector<SharedClock> issue_clocks_;        // by core
  std::vector<SharedClock> last_issue_;          // by unit
  std::map<std::uint32_t, std::deque<Clock>> flags_, intra_;
  std::map<std::uint32_t, std::vector<Clock>> unlocks_;
  std::map<std::uint32_t, std::vector<Clock>> rounds_;
  std::map<std::uint32_t, std::uint32_t> rounds_waited_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Accumulator> accumulators_;

  // The running instruction.
  std::uint32_t unit_ = 0;
  int slot_ = 0;
  const char* instruction_ = "";
  std::uint32_t window_ = 0;
  bool overlapping_ = false, vector_ = false;
  std::uint16_t thread_ = 0;
  const char *last_instruction_ = nullptr, *last_intrinsic_ = nullptr;
  std::uint16_t last_name_ = 0;
  std::string finding_;
};

// The check of the session that runs on this host thread, or nullptr.
extern __thread HappensBefore* running_check;

inline void reads(const void* address, std::size_t bytes) {
  if (running_check != nullptr) running_check->touch(address, bytes, Access::kRead);
}
inline void writes(const void* address, std::size_t bytes) {
  if (running_check != nullptr) running_check->touch(address, bytes, Access::kWrite);
}
inline void clears(const void* address, std::size_t bytes) {
  if (running_check != nullptr) running_check->touch(address, bytes, Access::kZero);
}
inline void updates(const void* address, std::size_t bytes) {
  if (running_check != nullptr) running_check->touch(address, bytes, Access::kAtomic);
}

}  // namespace kaas_twin
