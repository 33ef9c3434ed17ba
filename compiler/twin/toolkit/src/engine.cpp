// A block at work: scalar streams and pipes issue, wait for and complete instructions.
#include <pthread.h>

#include <algorithm>

#include "engine_state.h"
#include "kaas_twin/simt_launch.h"
#include "text.h"

namespace kaas_twin {

namespace {

thread_local Session* t_session = nullptr;

constexpr std::size_t kFarAhead =
    65536;  // instructions a scalar stream may run ahead where a schedule favours it

const char* const kPipeNames[kPipeCount] = {"PIPE_S",    "PIPE_V",    "PIPE_M",  "PIPE_MTE1",
                                            "PIPE_MTE2", "PIPE_MTE3", "PIPE_FIX"};

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

void scalar_entry(void* argument) {
  const auto* plan = static_cast<const LaunchPlan*>(argument);
  plan->kernel->call(plan->arguments);
}

// Of the calling host thread.
bool on_host_stack(const void* address) {
  static thread_local const std::pair<const char*, std::size_t> stack = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &low, &bytes);
      pthread_attr_destroy(&attributes);
    }
    return std::pair(static_cast<const char*>(low), bytes);
  }();
  const auto* byte = static_cast<const char*>(address);
  return byte >= stack.first && byte < stack.first + stack.second;
}

bool lock_open(const Core& core, const Instruction& lock) {
  for (int slot = 0; slot < kPipeCount; ++slot) {
    if (core.unlocks_done[lock.id][slot] < (*lock.unlocks_before)[static_cast<std::size_t>(slot)])
      return false;
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
  if (plan.shadow != nullptr)
    check_ = std::make_unique<HappensBefore>(*plan.shadow, blocks_, plan.blocks);
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
  std::string text =
      format("block %u, %s, %s", core_->block->index, core_->label().c_str(), kPipeNames[pipe_]);
  if (instruction_[0] != '\0') text += std::string(", ") + instruction_;
  return text;
}

bool Session::on_chip(const void* address) const {
  for (const auto& arena : arenas_) {
    if (arena->on_chip(address)) return true;
  }
  return false;
}

bool Session::on_stack(const void* address) const {
  for (const auto& arena : arenas_) {
    if (arena->on_stack(address)) return true;
  }
  return on_host_stack(address) || simt::on_stack(address);
}

void Session::fail_here(const std::string& text) {
  // Many texts begin with the intrinsic; the place need not repeat it.
  const std::string name = std::string(instruction_) + ": ";
  const bool repeated = instruction_[0] != '\0' && text.compare(0, name.size(), name) == 0;
  throw BlockFailure(place() + ": " + (repeated ? text.substr(name.size()) : text));
}

std::string Session::run() {
  t_session = this;
  running_check = check_.get();
  std::string text;
  if (sigsetjmp(recovery, 1) == 0) {
    recoverable = true;
    text = run_guarded();
  } else {
    Fibre::forget_current();
    text = fault_text_;
  }
  recoverable = false;
  running_check = nullptr;
  t_session = nullptr;
  return text;
}

std::string Session::run_guarded() {
  try {
    if (plan_.schedule == Schedule::kAdversarial) {
      loop_adversarial();
    } else {
      loop_eager();
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
    text = signal_number == 8
               ? "integer division by zero"
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

void Session::begin_check(Core& core, int slot, const Instruction& instruction) {
  check_->begin(core, slot, instruction.issue, instruction.name);
  if (instruction.step != Step::kRun) return;
  switch (instruction.unit_flag) {
    case UnitFlag::kNone: return;
    case UnitFlag::kAccumulate:
    case UnitFlag::kComplete: check_->unit_flag_write(core, instruction.accumulator); return;
    case UnitFlag::kReadKeep:
    case UnitFlag::kReadRelease: check_->unit_flag_read(core, instruction.accumulator); return;
  }
}

void Session::end_check() {
  // Found where nothing may be thrown: inside loads and stores of generated code.
  if (check_ != nullptr && !check_->finding().empty()) throw BlockFailure(check_->finding());
}

// Carries out an instruction whose condition holds.
void Session::complete(Core& core, int slot, Instruction& instruction) {
  if (check_ != nullptr) begin_check(core, slot, instruction);
  switch (instruction.step) {
    case Step::kRun:
      instruction.task();
      if (instruction.unit_flag == UnitFlag::kComplete) {
        core.accumulator_full[instruction.accumulator] = true;
        if (check_ != nullptr) check_->unit_flag_written(core, instruction.accumulator);
      }
      if (instruction.unit_flag == UnitFlag::kReadRelease) {
        core.accumulator_full[instruction.accumulator] = false;
        if (check_ != nullptr) check_->unit_flag_released(core, instruction.accumulator);
      }
      end_check();
      return;
    case Step::kNotify:
      ++core.flags[slot][instruction.other][instruction.id];
      if (check_ != nullptr) check_->notify(core, slot, instruction.other, instruction.id);
      return;
    case Step::kWait:
      --core.flags[instruction.other][slot][instruction.id];
      if (check_ != nullptr) check_->wait(core, slot, instruction.other, instruction.id);
      return;
    case Step::kLock:
      if (check_ != nullptr) check_->lock(core, slot, instruction.id, instruction.unlocks_before->data());
      return;
    case Step::kUnlock:
      ++core.unlocks_done[instruction.id][slot];
      if (check_ != nullptr) check_->unlock(core, slot, instruction.id);
      return;
    case Step::kPipeBarrier:
      if (check_ != nullptr) check_->pipe_barrier(core, slot);
      return;
    case Step::kDrain:
      if (check_ != nullptr) check_->drain(core);
      return;
    case Step::kIntraArrive: {
      auto add = [&](Core* target, int id) {
        if (target == nullptr)
          fail_here(format("arrive %d is meant for a core that this kernel does not have", instruction.id));
        if (++target->intra[id] > kIntraLimit) {
          fail_here(format("counter %d of %s exceeds %d: nobody waits for it", id, target->label().c_str(),
                           kIntraLimit));
        }
        if (check_ != nullptr) check_->intra_arrive(core, slot, *target, id);
      };
      if (core.kind == CoreKind::kAic) {
        add(core.block->aiv[instruction.id / 16], instruction.id % 16);
      } else {
        if (instruction.id >= 16)
          fail_here(format("an AIV may arrive at 0..15 only, not at %d", instruction.id));
        add(core.block->aic, instruction.id + 16 * static_cast<int>(core.sub_block));
      }
      return;
    }
    case Step::kIntraWait:
      --core.intra[instruction.id];
      if (check_ != nullptr) check_->intra_wait(core, slot, instruction.id);
      return;
    case Step::kInterArrive: {
      ++core.inter_arrivals[instruction.id];
      if (check_ != nullptr)
        check_->inter_arrive(core, slot, instruction.id, core.inter_arrivals[instruction.id]);
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
    case Step::kInterWait:
      --core.inter[instruction.id];
      if (check_ != nullptr) check_->inter_wait(core, slot, instruction.id);
      return;
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
  if (check_ != nullptr) check_->begin(core, 0, nullptr, "");
  core.fibre.resume();
  core.scalar_done = core.fibre.finished();
  end_check();
}

void Session::block_scalar(Instruction&& wait) {
  Core& core = *core_;
  if (wait.step != Step::kYield && plan_.schedule != Schedule::kAdversarial && ready(core, 0, wait)) {
    complete(core, 0, wait);
    if (check_ != nullptr) check_->begin(core, 0, nullptr, "");
    return;
  }
  core.scalar_wait = std::move(wait);
  Fibre::suspend();
}

void Session::issue(int slot, Instruction&& instruction) {
  Core& core = *core_;
  if (pipe_ != 0)
    fail_here(std::string(instruction.name) +
              " is issued from inside an instruction; only scalar code may issue");
  if (slot == 0) {
    // The scalar pipe executes what it issues at once.
    if (!ready(core, 0, instruction)) {
      block_scalar(std::move(instruction));
    } else {
      const char* outer = instruction_;
      instruction_ = instruction.name;
      complete(core, 0, instruction);
      instruction_ = outer;
      if (check_ != nullptr) check_->begin(core, 0, nullptr, "");
    }
    return;
  }
  const bool cube_pipe = slot == 2 || slot == 3 || slot == 6;
  if (core.kind == CoreKind::kAiv && cube_pipe)
    fail_here(format("%s: %s exists on the AIC only", instruction.name, kPipeNames[slot]));
  if (core.kind == CoreKind::kAic && slot == 1)
    fail_here(format("%s: %s exists on an AIV only", instruction.name, kPipeNames[slot]));
  if (check_ != nullptr) {
    end_check();
    instruction.issue = check_->issued(core);
  }
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

}  // namespace kaas_twin
