// The two orders in which a session runs its ready instructions.
#include "engine_state.h"

namespace kaas_twin {

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

// Always the ready unit of highest priority, one instruction at a time. Priorities are random and some change
// at random moments, so that a unit may be held back for as long as the flags allow while the others go on.
// Of three seeds one treats all units alike, one lets the scalar streams run far ahead, and one holds back a
// single pipe at a time.
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

}  // namespace kaas_twin
