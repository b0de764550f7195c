#include "launch/output/output_thread.h"

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/base/deadline.h"

namespace lockstep::launch {
namespace {

// Its default is to be ignored; only end() installs a handler.
constexpr int kInterrupt = SIGURG;
constexpr auto kJoinFor = std::chrono::seconds(1);

extern "C" void take_no_action(int) {}

extern "C" void* run_body(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Result<OutputThread> OutputThread::start(std::function<void()> body) {
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t others;
  sigset_t before;
  sigfillset(&others);
  sigdelset(&others, kInterrupt);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  pthread_t thread{};
  const int error = pthread_create(&thread, nullptr, &run_body, argument.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status::from_errno("cannot start a thread for the output", error);
  static_cast<void>(argument.release());  // NOLINT(bugprone-unused-return-value): run_body deletes it
  return OutputThread(thread);
}

void OutputThread::end() const {
  struct sigaction interrupt {};
  struct sigaction before {};
  interrupt.sa_handler = take_no_action;
  sigaction(kInterrupt, &interrupt, &before);
  // Repeated, because the signal may arrive just before the system call begins.
  const Deadline deadline = Deadline::after(kJoinFor);
  bool joined = false;
  while (!(joined = pthread_tryjoin_np(thread_, nullptr) == 0) && !deadline.expired()) {
    pthread_kill(thread_, kInterrupt);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (!joined) pthread_detach(thread_);
  sigaction(kInterrupt, &before, nullptr);
}

}  // namespace lockstep::launch
