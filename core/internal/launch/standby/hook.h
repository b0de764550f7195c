// The hook of programs that a launcher may load ahead of their start ("standby"). It runs before main() and before the
// program's own static objects are made, but after its shared libraries are loaded and set up. In a process that the
// launcher has started for a later restart it waits there. When the launcher needs a worker, it sends the worker's
// standard streams and what has changed in its environment, and the program goes on.
//
// An ELF note in the executable says that the hook is there. The launcher starts no program ahead without that note:
// its main() would run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::launch {

// The note: its owner, type and value. The value changes with the protocol.
inline constexpr char kStandbyNoteOwner[] = "Lockstep";
inline constexpr std::uint32_t kStandbyNoteType = 1;
inline constexpr std::uint32_t kStandbyProtocol = 1;

// "FD:INODE:SCORE" in the environment of a waiting process. FD is its end of a SOCK_SEQPACKET pair. A process that only
// inherited the variable has no socket with that inode number. SCORE is the worker's oom_score_adj: until then the
// process has the highest. The variable is gone when the process goes on. It comes first, and spaces at its end leave
// room: there /proc/PID/environ shows what has changed, before the old values.
inline constexpr const char* kStandbyVariable = "LOCKSTEP_STANDBY";
inline constexpr std::size_t kStandbyVariableBytes = 1024;

// The launcher sends one message: three descriptors (the standard streams) and texts that end with NUL: "NAME=value"
// for a variable to set, "NAME" for one to remove.
inline constexpr std::size_t kMostStandbyBytes = std::size_t{64} << 10;

// Before the name of a process that waits, as `ps` shows it.
inline constexpr char kStandbyPrefix[] = "standby:";

// Waits if this process was started for that. The hook calls it before main(), unless the program defines
// lockstep_waits_on_standby_itself: a program that only becomes another one (execve) leaves the waiting to that one.
void wait_on_standby();

// Does nothing. Linkers leave out what nobody asks of a static library: programs that call this have the hook.
void link_standby_hook();

}  // namespace lockstep::launch

extern "C" const char lockstep_waits_on_standby_itself __attribute__((weak));
