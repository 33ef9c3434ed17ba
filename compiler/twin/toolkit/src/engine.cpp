// The scheduler of a block: scalar streams, pipes, flags, locks, and the two orders in which they may run.
#include <pthread.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine_state.h"

namespace kaas_twin {

namespace {

thread_local Session* t_session = nullptr;

constexpr std::size_t kFarAhead = 65536;  // instructions a scalar stream may run ahead where a schedule favours it

const char* const kPipeNames[kPipeCount] = {"PIPE_S", "PIPE_V", "PIPE_M", "PIPE_MTE1", "PIPE_MTE2", "PIPE_MTE3", "PIPE_FIX"};

std::string vformat(const char* format, va_list arguments) {
  va_list copy;
  va_copy(copy, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  std::string text(static_cast<std::size_t>(length < 0 ? 0 : length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, arguments);
  return text;
}

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  return text;
}

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

struct ScalarStart {
  Session* session;
  const LaunchPlan* plan;
};

void scalar_entry(void* argument) {
  const auto* plan = static_cast<const LaunchPlan*>(argument);
  plan->kernel->call(plan->arguments);
}

bool lock_open(const Core& core, const Instruction& lock) {
  for (int slot = 0; slot < kPipeCount; ++slot) {
    if (core.unlocks_done[lock.id][slot] < (*lock.unlocks_before)[static_cast<std::size_t>(slot)]) return false;
  }
  return true;
}

}  // namespace

int pipe_slot(pipe_t pipe, const char* intrinsic) {
  switch (pipe) {
    case PIPE_S: return 0;
    case PIPE_V: return 1;
    case PIPE_M: return 2;
    case PIPE_MTE1: return 3;
    case PIPE_MTE2: return 4;
    case PIPE_MTE3: return 5;
    case PIPE_FIX: return 6;
    case PIPE_ALL: break;
  }
  fail("%s: pipe %d is not a single pipe", intrinsic, static_cast<int>(pipe));
}

const char* pipe_name(int slot) { return kPipeNames[slot]; }

std::string Core::label() const {
  return kind == CoreKind::kAic ? std::string("AIC") : "AIV" + std::to_string(sub_block);
}

Session* Session::current() { return t_session; }

Session::Session(const LaunchPlan& plan, const std::vector<std::uint32_t>& block_indices) : plan_(plan) {
  const KernelKind kind = plan.kernel->kind;
  for (std::uint32_t index : block_indices) {
    auto block = std::make_unique<Block>();
    block->index = index;
    auto add = [&](CoreKind core_kind, std::uint32_t sub_block) {
      auto core = std::make_unique<Core>();
      core->block = block.get();
      core->kind = core_kind;
      core->sub_block = sub_block;
      core->scalar_wait.step = Step::kYield;
      cores_.push_back(core.get());
      block->cores.push_back(std::move(core));
      return cores_.back();
    };
    if (kind != KernelKind::kVector) block->aic = add(CoreKind::kAic, 0);
    if (kind == KernelKind::kVector) block->aiv[0] = add(CoreKind::kAiv, 0);
    if (kind == KernelKind::kMixed) {
      for (std::uint32_t sub = 0; sub < plan.kernel->vectors_per_block && sub < 2; ++sub) {
        block->aiv[sub] = add(CoreKind::kAiv, sub);
      }
    }
    auto arena = take_arena();
    arena->attach(*block);
    for (std::size_t i = 0; i < block->cores.size(); ++i) {
      block->cores[i]->fibre.prepare(arena->stack(static_cast<int>(i)), arena->stack_bytes(), &scalar_entry,
                                     const_cast<LaunchPlan*>(&plan_));
    }
    arenas_.push_back(std::move(arena));
    blocks_.push_back(std::move(block));
  }
  random_state_ = mix(plan.seed * 0x100000001b3ull + (block_indices.size() == 1 ? block_indices[0] + 1 : 0));
}

Session::~Session() {
  for (auto& arena : arenas_) give_arena(std::move(arena));
}

std::uint64_t Session::random() {
  random_state_ += 0x9e3779b97f4a7c15ull;
  return mix(random_state_);
}

std::string Session::place() const {
  if (core_ == nullptr) return "";
  std::string text = format("block %u, %s, %s", core_->block->index, core_->label().c_str(), kPipeNames[pipe_]);
  if (instruction_[0] != '\0') text += std::string(", ") + instruction_;
  return text;
}

void Session::fail_here(const std::string& text) {
  // Many texts begin with the intrinsic; the place need not repeat it.
  const std::string name = std::string(instruction_) + ": ";
  const bool repeated = instruction_[0] != '\0' && text.compare(0, name.size(), name) == 0;
  throw BlockFailure(place() + ": " + (repeated ? text.substr(name.size()) : text));
}

std::string Session::run() {
  t_session = this;
  std::string text;
  if (sigsetjmp(recovery, 1) == 0) {
    recoverable = true;
    text = run_guarded();
  } else {
    Fibre::forget_current();
    text = fault_text_;
  }
  recoverable = false;
  t_session = nullptr;
  return text;
}

std::string Session::run_guarded() {
  try {
    if (plan_.schedule == Schedule::kEager) {
      loop_eager();
    } else {
      loop_adversarial();
    }
    check_finished();
    return "";
  } catch (const BlockFailure& failure) {
    return failure.what();
  } catch (const std::exception& failure) {
    return place() + ": " + failure.what();
  } catch (...) {
    return place() + ": an exception of the kernel's own";
  }
}

void Session::note_fault(int signal_number, const void* address) {
  std::string text;
  for (const auto& arena : arenas_) {
    if (arena->describe_fault(address, text)) break;
  }
  if (text.empty()) {
    text = signal_number == 8 ? "integer division by zero"
                              : format("access to address %p, which no tensor or on-chip memory holds", address);
  }
  fault_text_ = place() + ": " + text;
}

bool Session::ready(Core& core, int slot, const Instruction& instruction) const {
  switch (instruction.step) {
    case Step::kRun:
      if (instruction.unit_flag == UnitFlag::kNone) return true;
      {
        const auto found = core.accumulator_full.find(instruction.accumulator);
        const bool full = found != core.accumulator_full.end() && found->second;
        const bool writes =
            instruction.unit_flag == UnitFlag::kAccumulate || instruction.unit_flag == UnitFlag::kComplete;
        return writes ? !full : full;
      }
    case Step::kWait: return core.flags[instruction.other][slot][instruction.id] > 0;
    case Step::kLock: return lock_open(core, instruction);
    case Step::kIntraWait: return core.intra[instruction.id] > 0;
    case Step::kInterWait: return core.inter[instruction.id] > 0;
    case Step::kDrain: return core.queued == 0;
    default: return true;
  }
}

// Carries out an instruction whose condition holds.
void Session::complete(Core& core, int slot, Instruction& instruction) {
  switch (instruction.step) {
    case Step::kRun:
      instruction.task();
      if (instruction.unit_flag == UnitFlag::kComplete) core.accumulator_full[instruction.accumulator] = true;
      if (instruction.unit_flag == UnitFlag::kReadRelease) core.accumulator_full[instruction.accumulator] = false;
      return;
    case Step::kNotify: ++core.flags[slot][instruction.other][instruction.id]; return;
    case Step::kWait: --core.flags[instruction.other][slot][instruction.id]; return;
    case Step::kUnlock: ++core.unlocks_done[instruction.id][slot]; return;
    case Step::kIntraArrive: {
      auto add = [&](Core* target, int id) {
        if (target == nullptr) fail_here(format("arrive %d is meant for a core that this kernel does not have", instruction.id));
        if (++target->intra[id] > kIntraLimit) {
          fail_here(format("counter %d of %s exceeds %d: nobody waits for it", id, target->label().c_str(), kIntraLimit));
        }
      };
      if (core.kind == CoreKind::kAic) {
        add(core.block->aiv[instruction.id / 16], instruction.id % 16);
      } else {
        if (instruction.id >= 16) fail_here(format("an AIV may arrive at 0..15 only, not at %d", instruction.id));
        add(core.block->aic, instruction.id + 16 * static_cast<int>(core.sub_block));
      }
      return;
    }
    case Step::kIntraWait: --core.intra[instruction.id]; return;
    case Step::kInterArrive: {
      ++core.inter_arrivals[instruction.id];
      std::uint32_t least = ~0u;
      for (Core* peer : cores_) {
        if (peer->kind == core.kind) least = std::min(least, peer->inter_arrivals[instruction.id]);
      }
      // The last core of the kind lets all of them through.
      if (least == core.inter_arrivals[instruction.id]) {
        for (Core* peer : cores_) {
          if (peer->kind == core.kind) ++peer->inter[instruction.id];
        }
      }
      return;
    }
    case Step::kInterWait: --core.inter[instruction.id]; return;
    default: return;
  }
}

void Session::step_pipe(Core& core, int slot) {
  auto& queue = core.queues[static_cast<std::size_t>(slot)];
  Instruction instruction = std::move(queue.front());
  queue.pop_front();
  core_ = &core;
  pipe_ = slot;
  instruction_ = instruction.name;
  complete(core, slot, instruction);
  --core.queued;
}

void Session::step_scalar(Core& core) {
  core_ = &core;
  pipe_ = 0;
  instruction_ = core.scalar_wait.name;
  complete(core, 0, core.scalar_wait);
  core.scalar_wait = Instruction{};
  core.scalar_wait.step = Step::kYield;
  instruction_ = "";
  core.fibre.resume();
  core.scalar_done = core.fibre.finished();
}

// Program order as far as the flags allow: what is issued runs at once unless it has to wait.
void Session::loop_eager() {
  for (;;) {
    bool progress = false;
    for (Core* core : cores_) {
      for (int slot = 1; slot < kPipeCount; ++slot) {
        auto& queue = core->queues[static_cast<std::size_t>(slot)];
        while (!queue.empty() && ready(*core, slot, queue.front())) {
          step_pipe(*core, slot);
          progress = true;
        }
      }
    }
    for (Core* core : cores_) {
      if (scalar_ready(*core)) {
        step_scalar(*core);
        progress = true;
      }
    }
    if (progress) continue;
    bool work = false;
    for (Core* core : cores_) work = work || !core->scalar_done || core->queued != 0;
    if (!work) return;
    report_deadlock();
  }
}

bool Session::unit_ready(const Unit& unit) const {
  if (unit.slot == 0) return scalar_ready(*unit.core);
  const auto& queue = unit.core->queues[static_cast<std::size_t>(unit.slot)];
  return !queue.empty() && ready(*unit.core, unit.slot, queue.front());
}

// Always the ready unit of highest priority, one instruction at a time. Priorities are random and some change at random
// moments, so that a unit may be held back for as long as the flags allow while the others go on. Of three seeds one
// treats all units alike, one lets the scalar streams run far ahead, and one holds back a single pipe at a time.
void Session::loop_adversarial() {
  std::vector<Unit> units;
  const std::uint64_t bias = plan_.seed % 3;
  auto draw = [&](int slot) {
    std::uint64_t priority = 1 + (random() >> 2);
    if (slot == 0 && bias == 1) priority |= 1ull << 63;
    return priority;
  };
  for (Core* core : cores_) {
    for (int slot = 0; slot < kPipeCount; ++slot) units.push_back({core, slot, draw(slot)});
  }
  Unit* lazy = nullptr;
  auto change = [&] {
    Unit& unit = units[random() % units.size()];
    if (bias == 2 && unit.slot != 0) {
      if (lazy != nullptr) lazy->priority = draw(lazy->slot);
      lazy = &unit;
      lazy->priority = 0;
    } else {
      unit.priority = draw(unit.slot);
    }
  };
  change();
  std::uint64_t until_change = 1 + random() % 32;
  for (;;) {
    Unit* best = nullptr;
    for (Unit& unit : units) {
      if ((best == nullptr || unit.priority > best->priority) && unit_ready(unit)) best = &unit;
    }
    if (best == nullptr) {
      for (Core* core : cores_) {
        if (!core->scalar_done || core->queued != 0) report_deadlock();
      }
      return;
    }
    if (best->slot == 0) {
      step_scalar(*best->core);
    } else {
      step_pipe(*best->core, best->slot);
    }
    if (--until_change == 0) {
      change();
      until_change = 1 + random() % 32;
    }
  }
}

std::string Session::describe(const Core& core, int slot, const Instruction& instruction) const {
  switch (instruction.step) {
    case Step::kWait:
      return format("waits for flag %d from %s, which nobody sets", instruction.id, kPipeNames[instruction.other]);
    case Step::kLock: {
      std::string holders;
      for (int other = 0; other < kPipeCount; ++other) {
        if (core.unlocks_done[instruction.id][other] < (*instruction.unlocks_before)[static_cast<std::size_t>(other)]) {
          holders += std::string(" ") + kPipeNames[other];
        }
      }
      return format("waits to lock mutex %d, not unlocked yet by%s", instruction.id, holders.c_str());
    }
    case Step::kIntraWait:
      return format("waits for counter %d of %s (another core of the block), which is 0", instruction.id,
                    core.label().c_str());
    case Step::kInterWait: return format("waits for inter-block counter %d, which is 0", instruction.id);
    case Step::kDrain: return "waits for all pipes of the core to finish";
    case Step::kRun:
      return format("%s waits for the unit flag of the accumulator at L0C offset %u", instruction.name,
                    instruction.accumulator);
    default: return std::string(instruction.name) + " is ready";
  }
  (void)slot;
}

void Session::report_deadlock() {
  std::string text = "deadlock, nothing can go on";
  int listed = 0;
  for (Core* core : cores_) {
    for (int slot = 0; slot < kPipeCount; ++slot) {
      const Instruction* stuck = nullptr;
      const auto& queue = core->queues[static_cast<std::size_t>(slot)];
      if (slot == 0 && !core->scalar_done) stuck = &core->scalar_wait;
      if (slot != 0 && !queue.empty()) stuck = &queue.front();
      if (stuck == nullptr) continue;
      if (++listed > 12) continue;
      text += format("; block %u, %s, %s: %s %s", core->block->index, core->label().c_str(), kPipeNames[slot],
                     stuck->name, describe(*core, slot, *stuck).c_str());
    }
  }
  if (listed > 12) text += format("; and %d more", listed - 12);
  throw BlockFailure(text);
}

void Session::check_finished() {
  for (Core* core : cores_) {
    const std::string where = format("block %u, %s: ", core->block->index, core->label().c_str());
    for (int from = 0; from < kPipeCount; ++from) {
      for (int to = 0; to < kPipeCount; ++to) {
        for (int id = 0; id < kFlagCount; ++id) {
          if (core->flags[from][to][id] != 0) {
            throw BlockFailure(where + format("flag %d from %s to %s is left set at the end (%d times): a notify without its wait", id,
                                              kPipeNames[from], kPipeNames[to], core->flags[from][to][id]));
          }
        }
      }
    }
    for (int id = 0; id < kIntraCount; ++id) {
      if (core->intra[id] != 0) {
        throw BlockFailure(where + format("counter %d between the cores of the block is left at %d at the end: an arrive without its wait", id,
                                          core->intra[id]));
      }
    }
    for (int id = 0; id < kInterCount; ++id) {
      if (core->inter[id] != 0) {
        throw BlockFailure(where + format("inter-block counter %d is left at %d at the end: an arrive without its wait", id, core->inter[id]));
      }
    }
  }
}

void Session::block_scalar(Instruction&& wait) {
  Core& core = *core_;
  if (wait.step != Step::kYield && plan_.schedule == Schedule::kEager && ready(core, 0, wait)) {
    complete(core, 0, wait);
    return;
  }
  core.scalar_wait = std::move(wait);
  Fibre::suspend();
}

void Session::issue(int slot, Instruction&& instruction) {
  Core& core = *core_;
  if (pipe_ != 0) fail_here(std::string(instruction.name) + " is issued from inside an instruction; only scalar code may issue");
  if (slot == 0) {
    // The scalar pipe executes what it issues at once.
    if (!ready(core, 0, instruction)) {
      block_scalar(std::move(instruction));
    } else {
      const char* outer = instruction_;
      instruction_ = instruction.name;
      complete(core, 0, instruction);
      instruction_ = outer;
    }
    return;
  }
  const bool cube_pipe = slot == 2 || slot == 3 || slot == 6;
  if (core.kind == CoreKind::kAiv && cube_pipe) fail_here(format("%s: %s exists on the AIC only", instruction.name, kPipeNames[slot]));
  if (core.kind == CoreKind::kAic && slot == 1) fail_here(format("%s: %s exists on an AIV only", instruction.name, kPipeNames[slot]));
  core.queues[static_cast<std::size_t>(slot)].push_back(std::move(instruction));
  ++core.queued;
  const bool far_ahead = plan_.schedule == Schedule::kAdversarial && plan_.seed % 3 == 1;
  if (core.queued >= (far_ahead ? kFarAhead : 1)) {
    Instruction yield;
    yield.step = Step::kYield;
    block_scalar(std::move(yield));
  }
}

void issue_step(pipe_t pipe, Instruction&& instruction) {
  Session* session = Session::current();
  session->issue(pipe_slot(pipe, instruction.name), std::move(instruction));
}

// ---- public interface -------------------------------------------------------------------------------------------------

void fail(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  if (t_session == nullptr) throw BlockFailure(text);
  t_session->fail_here(text);
}

void not_modelled(const char* intrinsic, const char* detail) {
  fail("%s%s%s is not modelled by the CPU twin", intrinsic, detail[0] != '\0' ? ": " : "", detail);
}

CoreKind core_kind() { return t_session->core().kind; }
std::uint32_t block_index() { return t_session->core().block->index; }
std::uint32_t block_count() { return t_session->plan().blocks; }
std::uint32_t sub_block_index() { return t_session->core().sub_block; }
std::uint32_t sub_block_count() {
  const KernelEntry& kernel = *t_session->plan().kernel;
  return kernel.kind == KernelKind::kMixed ? kernel.vectors_per_block : 1;
}
std::uint8_t* ub_base() { return t_session->core().ub; }

std::uint8_t* onchip(Memory memory, std::uint64_t offset, std::uint64_t bytes, const char* intrinsic,
                     std::size_t alignment) {
  Core& core = t_session->core();
  std::uint8_t* base = nullptr;
  std::uint64_t size = 0;
  const char* name = "";
  switch (memory) {
    case Memory::kL1: base = core.l1, size = kL1Bytes, name = "L1"; break;
    case Memory::kL0A: base = core.l0a, size = kL0ABytes, name = "L0A"; break;
    case Memory::kL0B: base = core.l0b, size = kL0BBytes, name = "L0B"; break;
    case Memory::kL0C: base = core.l0c, size = kL0CBytes, name = "L0C"; break;
    case Memory::kUb: base = core.ub, size = kUbBytes, name = "UB"; break;
  }
  if (base == nullptr) fail("%s: %s has no %s", intrinsic, core.label().c_str(), name);
  if (offset > size || bytes > size - offset) {
    fail("%s: out of range on %s: offset %lld + %llu bytes exceeds its %llu bytes", intrinsic, name,
         static_cast<long long>(offset), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(size));
  }
  if (alignment > 1 && offset % alignment != 0) {
    fail("%s: misaligned on %s: offset %llu is no multiple of %zu", intrinsic, name,
         static_cast<unsigned long long>(offset), alignment);
  }
  return base + offset;
}

std::uint8_t* ub_range(const void* address, std::size_t bytes, const char* intrinsic, std::size_t alignment) {
  const auto* base = t_session->core().ub;
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(address) - base);
  return onchip(Memory::kUb, offset, bytes, intrinsic, alignment);
}

void assert_on_pipe_v(const char* intrinsic) {
  if (t_session == nullptr || t_session->running_pipe() != 1) {
    fail("%s: a vector instruction outside a vector function (not on PIPE_V)", intrinsic);
  }
}

void submit_task(pipe_t pipe, const char* name, Task task) {
  Instruction instruction;
  instruction.name = name;
  instruction.task = std::move(task);
  issue_step(pipe, std::move(instruction));
}

// ---- launch -----------------------------------------------------------------------------------------------------------

namespace {

unsigned host_threads() {
  if (const char* text = std::getenv("KAAS_TWIN_THREADS")) {
    const long wanted = std::strtol(text, nullptr, 10);
    if (wanted >= 1) return static_cast<unsigned>(std::min(wanted, 256l));
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return static_cast<unsigned>(std::max(1, CPU_COUNT(&cpus)));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

std::string run_launch(const LaunchPlan& plan) {
  if (plan.blocks == 0) return "a launch needs at least one block";
  FaultGuard faults;
  if (plan.kernel->crosses_blocks != 0) {
    SignalStack stack;
    std::vector<std::uint32_t> all(plan.blocks);
    for (std::uint32_t i = 0; i < plan.blocks; ++i) all[i] = i;
    return Session(plan, all).run();
  }
  std::atomic<std::uint32_t> next{0};
  std::atomic<bool> failed{false};
  std::vector<std::pair<std::uint32_t, std::string>> failures;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  auto work = [&] {
    SignalStack stack;
    while (!failed.load(std::memory_order_relaxed)) {
      const std::uint32_t index = next.fetch_add(1);
      if (index >= plan.blocks) return;
      std::string text;
      try {
        text = Session(plan, {index}).run();
      } catch (const std::exception& failure) {
        text = std::string("the twin itself failed: ") + failure.what();
      }
      if (!text.empty()) {
        pthread_mutex_lock(&mutex);
        failures.emplace_back(index, text);
        pthread_mutex_unlock(&mutex);
        failed.store(true);
      }
    }
  };
  std::vector<std::thread> helpers;
  const unsigned threads = std::min<std::uint32_t>(host_threads(), plan.blocks);
  for (unsigned i = 1; i < threads; ++i) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads will do
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  // Blocks start in order, so every block before the first failing one has run: the report does not depend on timing.
  const std::pair<std::uint32_t, std::string>* first = nullptr;
  for (const auto& failure : failures) {
    if (first == nullptr || failure.first < first->first) first = &failure;
  }
  return first == nullptr ? "" : first->second;
}

}  // namespace kaas_twin
