// What a session says when it cannot go on, and what it checks when it is done.
#include "engine_state.h"
#include "text.h"

namespace kaas_twin {

std::string Session::describe(const Core& core, const Instruction& instruction) const {
  switch (instruction.step) {
    case Step::kWait:
      return format("waits for flag %d from %s, which nobody sets", instruction.id,
                    pipe_name(instruction.other));
    case Step::kLock: {
      std::string holders;
      for (int other = 0; other < kPipeCount; ++other) {
        if (core.unlocks_done[instruction.id][other] <
            (*instruction.unlocks_before)[static_cast<std::size_t>(other)]) {
          holders += std::string(" ") + pipe_name(other);
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
      text += format("; block %u, %s, %s: %s %s", core->block->index, core->label().c_str(), pipe_name(slot),
                     stuck->name, describe(*core, *stuck).c_str());
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
            throw BlockFailure(
                where +
                format("flag %d from %s to %s is left set at the end (%d times): a notify without its wait",
                       id, pipe_name(from), pipe_name(to), core->flags[from][to][id]));
          }
        }
      }
    }
    for (int id = 0; id < kIntraCount; ++id) {
      if (core->intra[id] != 0) {
        throw BlockFailure(where + format("counter %d between the cores of the block is left at %d at the "
                                          "end: an arrive without its wait",
                                          id, core->intra[id]));
      }
    }
    for (int id = 0; id < kInterCount; ++id) {
      if (core->inter[id] != 0) {
        throw BlockFailure(
            where + format("inter-block counter %d is left at %d at the end: an arrive without its wait", id,
                           core->inter[id]));
      }
    }
  }
}

}  // namespace kaas_twin
