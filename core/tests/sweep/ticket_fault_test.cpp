// A rank that dies with a ticket: nobody writes to the call's buffers any more, so they stay in the arena.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "engine/calls.h"
#include "engine/faulty_job.h"
#include "engine/process_group.h"
#include "sweep/script.h"

namespace lockstep::test {
namespace {

// Two ranks: of three, the system could stop the other survivor in a ticket for as long as the first one waits for it,
// which takes the buffers out of the arena.
TEST(TicketFault, BuffersStayInTheArenaAfterADeath) {
  if (!is_rank()) {
    FaultyJob job(2);
    job.expect_survivors_end(1);
    return job.expect_victim_killed(1);
  }
  const ProcessGroup group;
  comm::SharedArena& arena = group->arena();
  const Buffer buffer(arena, Place::kArena, std::size_t{4} << 20);
  std::memset(buffer.data(), 0, buffer.bytes());
  ASSERT_TRUE(arena.contains(buffer.data(), buffer.bytes()));
  if (group->rank() == 1) {
    ScriptSettings settings;
    settings.point = "ticket: claimed";
    settings.passing = 1;
    settings.signal = SIGKILL;
    stop_at_point(settings);
  }
  auto* const values = reinterpret_cast<float*>(buffer.data());
  const comm::AllReduce call{values, values, buffer.bytes() / sizeof(float)};
  Status status;
  // Again and again: rank 0 may do all tickets of a call.
  while (status.ok()) status = group->run(call, Deadline::after(std::chrono::seconds(30)));
  expect_names(status, ErrorCode::kPeerFailed, "rank 1 (pid ");
  EXPECT_TRUE(arena.contains(buffer.data(), buffer.bytes()));
}

}  // namespace
}  // namespace lockstep::test
