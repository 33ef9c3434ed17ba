// A launch: every block of the grid, spread over the host's threads.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "engine_state.h"

namespace kaas_twin {

namespace {

unsigned host_threads() {
  if (const char* text = std::getenv("KAAS_TWIN_THREADS")) {
    const long wanted = std::strtol(text, nullptr, 10);
    if (wanted >= 1) return static_cast<unsigned>(std::min(wanted, 256l));
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&cpus)));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

std::string run_launch(const LaunchPlan& launch) {
  if (launch.blocks == 0) return "a launch needs at least one block";
  LaunchPlan plan = launch;
  std::unique_ptr<Shadow> shadow;
  if (plan.schedule == Schedule::kHappensBefore) {
    shadow = std::make_unique<Shadow>();
    plan.shadow = shadow.get();
  }
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
  std::vector<std::thread> others;
  // A checked launch has one shadow of GM for all its blocks, which run one after another.
  const unsigned threads = shadow != nullptr ? 1 : std::min<std::uint32_t>(host_threads(), plan.blocks);
  for (unsigned i = 1; i < threads; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // fewer threads will do
    }
  }
  work();
  for (std::thread& other : others) other.join();
  // Blocks start in order, so every block before the first failing one has run: the report does not depend on
  // timing.
  const std::pair<std::uint32_t, std::string>* first = nullptr;
  for (const auto& failure : failures) {
    if (first == nullptr || failure.first < first->first) first = &failure;
  }
  return first == nullptr ? "" : first->second;
}

}  // namespace kaas_twin
