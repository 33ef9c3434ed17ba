// The engine's own state: cores, their pipes and flags, and the session that runs one block (or, for kernels
// with inter-block flags, all blocks) on one host thread. Not visible to generated code.
#pragma once

#include <array>
#include <csetjmp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "happens_before.h"
#include "kaas_twin/engine.h"
#include "kaas_twin/fibre.h"
#include "kaas_twin/image.h"

namespace kaas_twin {

inline constexpr int kPipeCount = 7;  // S V M MTE1 MTE2 MTE3 FIX
inline constexpr int kFlagCount = 32;
inline constexpr int kMutexCount = 32;
inline constexpr int kIntraCount = 32;
inline constexpr int kInterCount = 32;
inline constexpr int kIntraLimit = 15;  // the counters have four bits

// What ended a block; the text already names the place.
class BlockFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

int pipe_slot(pipe_t pipe, const char* intrinsic);  // 0 .. kPipeCount-1; fails on PIPE_ALL and unknown values
const char* pipe_name(int slot);

enum class Step : std::uint8_t {
  kRun,     // a closure
  kNotify,  // flag[pipe][other][id] += 1
  kWait,    // flag[other][pipe][id] > 0, then -= 1
  kLock,    // every earlier unlock of the mutex executed
  kUnlock,
  kIntraArrive,
  kIntraWait,
  kInterArrive,
  kInterWait,
  kPipeBarrier,  // everything before it in the pipe has ended
  kDrain,  // scalar only: every pipe of the core is empty
  kYield,  // scalar only: always ready
};

// Tasks that take part in the accumulator handshake between the cube and the fixpipe.
enum class UnitFlag : std::uint8_t { kNone, kAccumulate, kComplete, kReadKeep, kReadRelease };

using UnlockCounts = std::array<std::uint32_t, kPipeCount>;

struct Instruction {
  Step step = Step::kRun;
  UnitFlag unit_flag = UnitFlag::kNone;
  std::uint8_t other = 0;  // the flag's other pipe
  std::uint8_t id = 0;
  std::uint32_t accumulator = 0;  // L0C offset of a unit-flag task
  const char* name = "";
  Task task;
  std::unique_ptr<UnlockCounts> unlocks_before;  // of a lock
  SharedClock issue;  // in a checked run: what the scalar stream had waited for
};

// Special registers, written by scalar code at once and sampled when an instruction is issued.
struct Registers {
  std::uint32_t nz_count = 1, nz_row_stride = 1, nz_column_stride = 0, nz_matrix_stride = 0;
  std::uint32_t l0c_matrices = 1, l0c_source_stride = 0, l0c_target_stride = 0;
  std::uint64_t pad_value = 0;
  int atomic_op = 0;       // 0 none, 1 add, 2 max, 3 min
  int atomic_element = 0;  // an Element
  bool hf32 = false;
  int hf32_rounding = 0;
};

struct Block;

struct Core {
  Block* block = nullptr;
  CoreKind kind = CoreKind::kAic;
  std::uint32_t sub_block = 0;

  // On-chip memory. ub of the AIC is a shadow range that only gives offsets.
  std::uint8_t* l1 = nullptr;
  std::uint8_t* l0a = nullptr;
  std::uint8_t* l0b = nullptr;
  std::uint8_t* l0c = nullptr;
  std::uint8_t* l0a_scales = nullptr;
  std::uint8_t* l0b_scales = nullptr;
  std::uint8_t* ub = nullptr;

  std::array<std::deque<Instruction>, kPipeCount> queues;
  std::size_t queued = 0;
  std::int32_t flags[kPipeCount][kPipeCount][kFlagCount] = {};
  std::uint32_t unlocks_issued[kMutexCount][kPipeCount] = {};
  std::uint32_t unlocks_done[kMutexCount][kPipeCount] = {};
  std::int32_t intra[kIntraCount] = {};
  std::int32_t inter[kInterCount] = {};
  std::uint32_t inter_arrivals[kInterCount] = {};
  std::map<std::uint32_t, bool> accumulator_full;
  Registers registers;

  Fibre fibre;
  Instruction scalar_wait;  // what the scalar stream waits for; kYield when it may go on
  bool scalar_done = false;

  std::string label() const;
};

struct Block {
  std::uint32_t index = 0;
  std::vector<std::unique_ptr<Core>> cores;
  Core* aic = nullptr;
  std::array<Core*, 2> aiv = {nullptr, nullptr};
};

enum class Schedule : std::uint8_t { kEager, kAdversarial, kHappensBefore };

struct LaunchPlan {
  const KernelEntry* kernel = nullptr;
  const unsigned char* arguments = nullptr;
  std::uint32_t blocks = 0;
  Schedule schedule = Schedule::kEager;
  std::uint64_t seed = 0;
  std::uint32_t dynamic_ub_bytes = 0;
  Shadow* shadow = nullptr;  // of a checked launch
};

// On-chip memories and scalar stacks of one block; recycled between blocks and launches.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void attach(Block& block);  // hands the memories to the cores, filled with NaN bits
  bool describe_fault(const void* address, std::string& text) const;
  bool on_chip(const void* address) const;
  bool on_stack(const void* address) const;

  std::uint8_t* ub(int which) const;  // 0, 1: the AIVs; 2: the AIC's shadow
  void* stack(int core) const { return stacks_.low(static_cast<std::size_t>(core)); }
  std::size_t stack_bytes() const { return stacks_.bytes(); }

 private:
  std::uint8_t* mapping_ = nullptr;
  std::uint8_t* cube_ = nullptr;
  StackPool stacks_;
};

std::unique_ptr<Arena> take_arena();
void give_arena(std::unique_ptr<Arena> arena);

// Runs blocks to their end on the calling host thread.
class Session {
 public:
  Session(const LaunchPlan& plan, const std::vector<std::uint32_t>& block_indices);
  ~Session();

  // Empty text on success, else what went wrong.
  std::string run();

  static Session* current();

  // For the public interface and the intrinsics.
  Core& core() { return *core_; }
  const LaunchPlan& plan() const { return plan_; }
  bool all_blocks_together() const { return blocks_.size() == plan_.blocks; }
  void issue(int slot, Instruction&& instruction);
  void block_scalar(Instruction&& wait);
  int running_pipe() const { return pipe_; }
  std::string place() const;
  bool on_chip(const void* address) const;
  bool on_stack(const void* address) const;  // of this host thread, its scalar streams and SIMT threads
  [[noreturn]] void fail_here(const std::string& text);

  // For the fault handler.
  sigjmp_buf recovery;
  volatile bool recoverable = false;
  void note_fault(int signal_number, const void* address);

 private:
  struct Unit {
    Core* core;
    int slot;  // 0 is the scalar stream
    std::uint64_t priority;
  };

  std::string run_guarded();
  void loop_eager();
  void loop_adversarial();
  bool ready(Core& core, int slot, const Instruction& instruction) const;
  bool scalar_ready(Core& core) const { return !core.scalar_done && ready(core, 0, core.scalar_wait); }
  bool unit_ready(const Unit& unit) const;
  void complete(Core& core, int slot, Instruction& instruction);
  void begin_check(Core& core, int slot, const Instruction& instruction);
  void end_check();
  void step_pipe(Core& core, int slot);
  void step_scalar(Core& core);
  void check_finished();
  void report_deadlock();
  std::string describe(const Core& core, const Instruction& instruction) const;
  std::uint64_t random();

  const LaunchPlan& plan_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Core*> cores_;
  Core* core_ = nullptr;
  int pipe_ = 0;
  const char* instruction_ = "";
  std::uint64_t random_state_ = 0;
  std::string fault_text_;
  std::unique_ptr<HappensBefore> check_;  // of a checked run
};

// Issues with the current session; used by the intrinsics.
void issue_step(pipe_t pipe, Instruction&& instruction);

// Runs a launch over the host's threads; empty text on success.
std::string run_launch(const LaunchPlan& plan);

// Catches faults of generated code while any launch runs.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

// Gives the calling thread a signal stack for its life time.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  bool installed_ = false;
  alignas(16) unsigned char previous_[32] = {};
};

}  // namespace kaas_twin
