// Special registers and synchronisation instructions.
#include "engine_state.h"
#include "kaas_twin/instructions.h"

namespace kaas_twin {

namespace {

Registers& registers() { return Session::current()->core().registers; }

int checked_id(const char* name, std::uint64_t id, int limit) {
  if (id >= static_cast<std::uint64_t>(limit)) {
    fail("%s: id %lld is not in 0..%d", name, static_cast<long long>(id), limit - 1);
  }
  return static_cast<int>(id);
}

Instruction step(Step kind, const char* name, int id) {
  Instruction instruction;
  instruction.step = kind;
  instruction.name = name;
  instruction.id = static_cast<std::uint8_t>(id);
  return instruction;
}

}  // namespace

void set_nz_parameters(std::uint64_t matrices, std::uint64_t row_stride, std::uint64_t column_stride,
                       std::uint64_t matrix_stride) {
  Registers& r = registers();
  r.nz_count = static_cast<std::uint32_t>(matrices);
  r.nz_row_stride = static_cast<std::uint32_t>(row_stride);
  r.nz_column_stride = static_cast<std::uint32_t>(column_stride);
  r.nz_matrix_stride = static_cast<std::uint32_t>(matrix_stride);
}

void set_l0c_parameters(std::uint64_t matrices, std::uint64_t source_stride, std::uint64_t target_stride) {
  Registers& r = registers();
  r.l0c_matrices = static_cast<std::uint32_t>(matrices);
  r.l0c_source_stride = static_cast<std::uint32_t>(source_stride);
  r.l0c_target_stride = static_cast<std::uint32_t>(target_stride);
}

void set_pad_value(std::uint64_t bits) { registers().pad_value = bits; }

void set_atomic(int operation, Element element) {
  registers().atomic_op = operation;
  registers().atomic_element = static_cast<int>(element);
}

void set_hf32(bool enabled) { registers().hf32 = enabled; }
void set_hf32_rounding(int mode) { registers().hf32_rounding = mode; }

void sync_notify(pipe_t from, pipe_t to, int id) {
  const char* name = "asc_sync_notify";
  Instruction instruction =
      step(Step::kNotify, name, checked_id(name, static_cast<std::uint64_t>(id), kFlagCount));
  instruction.other = static_cast<std::uint8_t>(pipe_slot(to, name));
  issue_step(from, std::move(instruction));
}

void sync_wait(pipe_t from, pipe_t to, int id) {
  const char* name = "asc_sync_wait";
  Instruction instruction =
      step(Step::kWait, name, checked_id(name, static_cast<std::uint64_t>(id), kFlagCount));
  instruction.other = static_cast<std::uint8_t>(pipe_slot(from, name));
  issue_step(to, std::move(instruction));
}

void mutex_lock(pipe_t pipe, int id) {
  const char* name = "asc_lock";
  const int mutex = checked_id(name, static_cast<std::uint64_t>(id), kMutexCount);
  Instruction instruction = step(Step::kLock, name, mutex);
  instruction.unlocks_before = std::make_unique<UnlockCounts>();
  const Core& core = Session::current()->core();
  for (int slot = 0; slot < kPipeCount; ++slot) {
    (*instruction.unlocks_before)[static_cast<std::size_t>(slot)] = core.unlocks_issued[mutex][slot];
  }
  issue_step(pipe, std::move(instruction));
}

void mutex_unlock(pipe_t pipe, int id) {
  const char* name = "asc_unlock";
  const int mutex = checked_id(name, static_cast<std::uint64_t>(id), kMutexCount);
  ++Session::current()->core().unlocks_issued[mutex][pipe_slot(pipe, name)];
  issue_step(pipe, step(Step::kUnlock, name, mutex));
}

void sync_pipe(pipe_t pipe) {
  const char* name = "asc_sync_pipe";
  // Each pipe executes in order here, so only a checked run sees a barrier on one pipe.
  if (pipe != PIPE_ALL) {
    issue_step(pipe, step(Step::kPipeBarrier, name, 0));
    return;
  }
  issue_step(PIPE_S, step(Step::kDrain, name, 0));
}

void sync_intra_arrive(pipe_t pipe, std::uint64_t id) {
  const char* name = "asc_sync_intra_arrive";
  issue_step(pipe, step(Step::kIntraArrive, name, checked_id(name, id, kIntraCount)));
}

void sync_intra_wait(pipe_t pipe, std::uint64_t id) {
  const char* name = "asc_sync_intra_wait";
  issue_step(pipe, step(Step::kIntraWait, name, checked_id(name, id, kIntraCount)));
}

void sync_inter_arrive(pipe_t pipe, std::uint64_t id) {
  const char* name = "asc_sync_inter_arrive";
  if (!Session::current()->all_blocks_together())
    fail("%s: the image does not say that it crosses blocks", name);
  issue_step(pipe, step(Step::kInterArrive, name, checked_id(name, id, kInterCount)));
}

void sync_inter_wait(pipe_t pipe, std::uint64_t id) {
  const char* name = "asc_sync_inter_wait";
  if (!Session::current()->all_blocks_together())
    fail("%s: the image does not say that it crosses blocks", name);
  issue_step(pipe, step(Step::kInterWait, name, checked_id(name, id, kInterCount)));
}

}  // namespace kaas_twin
