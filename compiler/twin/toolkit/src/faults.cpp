// Memory and arithmetic faults of generated code become an error of the block instead of the end of the
// process.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstring>

#include "engine_state.h"

namespace kaas_twin {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
constexpr std::size_t kSignalStackBytes = 64 * 1024;

struct sigaction g_previous[3];
int g_users = 0;
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

// A thread keeps it from launch to launch: mapping it anew costs as much as a small kernel.
class StackMemory {
 public:
  ~StackMemory() {
    if (memory_ != nullptr) munmap(memory_, kSignalStackBytes);
  }

  void* get() {
    if (memory_ == nullptr) {
      void* mapped =
          mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped != MAP_FAILED) memory_ = mapped;
    }
    return memory_;
  }

 private:
  void* memory_ = nullptr;
};

thread_local StackMemory t_stack_memory;

void handle(int number, siginfo_t* info, void* context) {
  Session* session = Session::current();
  if (session != nullptr && session->recoverable) {
    session->recoverable = false;  // a second fault while describing the first one is a real crash
    session->note_fault(number, info->si_addr);
    siglongjmp(session->recovery, 1);
  }
  // Not ours: hand on to whoever was there before.
  for (int i = 0; i < 3; ++i) {
    if (kSignals[i] != number) continue;
    const struct sigaction& previous = g_previous[i];
    if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
      previous.sa_sigaction(number, info, context);
      return;
    }
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
      previous.sa_handler(number);
      return;
    }
    signal(number, SIG_DFL);
    raise(number);
  }
}

// A child must not inherit the mutex locked, nor believe that its parent's launches still run in it.
__attribute__((constructor)) void protect_fork() {
  pthread_atfork([] { pthread_mutex_lock(&g_mutex); }, [] { pthread_mutex_unlock(&g_mutex); },
                 [] {
                   if (g_users > 0) {
                     g_users = 0;
                     for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &g_previous[i], nullptr);
                   }
                   pthread_mutex_unlock(&g_mutex);
                 });
}

}  // namespace

FaultGuard::FaultGuard() {
  pthread_mutex_lock(&g_mutex);
  if (g_users++ == 0) {
    struct sigaction action;
    std::memset(&action, 0, sizeof(action));
    action.sa_sigaction = &handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &action, &g_previous[i]);
  }
  pthread_mutex_unlock(&g_mutex);
}

FaultGuard::~FaultGuard() {
  pthread_mutex_lock(&g_mutex);
  if (--g_users == 0) {
    for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &g_previous[i], nullptr);
  }
  pthread_mutex_unlock(&g_mutex);
}

SignalStack::SignalStack() {
  static_assert(sizeof(stack_t) <= sizeof(previous_));
  void* memory = t_stack_memory.get();
  installed_ = memory != nullptr;
  if (!installed_) return;
  stack_t mine;
  std::memset(&mine, 0, sizeof(mine));
  mine.ss_sp = memory;
  mine.ss_size = kSignalStackBytes;
  sigaltstack(&mine, reinterpret_cast<stack_t*>(previous_));
}

SignalStack::~SignalStack() {
  if (installed_) sigaltstack(reinterpret_cast<stack_t*>(previous_), nullptr);
}

}  // namespace kaas_twin
