// A process that gets no more threads from the system, as in a container whose pids limit is reached.
#pragma once

namespace lockstep::test {

// From here on this process runs as a user of its own, and may start `more` threads or processes. It cannot be undone,
// so use it in a rank or in the statement of EXPECT_EXIT. Needs root. SIGALRM ends a hang.
void refuse_threads(int more = 0);

}  // namespace lockstep::test
