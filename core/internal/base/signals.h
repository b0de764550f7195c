// Signals that are read from a descriptor instead of ending the process.
#pragma once

#include <sys/signalfd.h>

#include <csignal>
#include <initializer_list>

namespace lockstep {

// Those of `numbers` that the process does not ignore: one that was ignored at its start (nohup) stays ignored.
sigset_t without_ignored(std::initializer_list<int> numbers);

// The next signal of a signalfd that does not block. Its ssi_signo is 0 if there is none.
signalfd_siginfo next_signal(int fd);

}  // namespace lockstep
