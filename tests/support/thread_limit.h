// A process that the system gives no more threads, as in a container whose pids limit is reached.
#pragma once

namespace lockstep::test {

// From here on this process is another user's (whom nobody else is), and may start so many threads or processes more
// than it has. There is no way back: for a rank, or the statement of EXPECT_EXIT. Needs root. A hang ends by SIGALRM.
void refuse_threads(int more = 0);

}  // namespace lockstep::test
