// The cost of the flight recorder and of call places in a small all-reduce: `seen_calls TURNS OUTPUT` makes blocking
// all-reduces of 4 bytes in two groups of all ranks, in turn. The calls of the first group are recorded with their
// places in the program. The calls of the second group are not recorded and have no place. In both groups the ranks
// compare their calls, because the protocol always does. `lockstep run` starts the program.
#include <lockstep/c10d/distributed.h>
#include <lockstep/engine/communicator.h>
#include <lockstep/store/file_store.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "c10d/backend/collective_call.h"
#include "turns.h"

namespace {

namespace bench = lockstep::bench;

constexpr int kCalls = 2000;  // of a turn

std::shared_ptr<lockstep::GroupCore> make_group(const std::string& path, const lockstep::ProcessGroupGuard& world,
                                                const char* name) {
  const auto store = lockstep::comm::FileStore::open(path).value();
  lockstep::comm::CommunicatorOptions options;
  options.rank = world.rank();
  options.group_size = world.world_size();
  options.name = name;
  auto communicator = lockstep::comm::Communicator::create(store, options);
  if (!communicator.ok()) bench::die(name, communicator.status().message());
  return std::make_shared<lockstep::GroupCore>(std::shared_ptr(std::move(communicator).value()), world.world_size(),
                                               lockstep::GroupCore::Names{name, "lockstep"});
}

// As ProcessGroupLockstep::allreduce() does it.
void all_reduce(const std::shared_ptr<lockstep::GroupCore>& group, const at::Tensor& tensor) {
  lockstep::CollectiveCall call(group, "all_reduce",
                                {c10d::OpType::ALLREDUCE, lockstep::Blocking::kYes, std::chrono::milliseconds(60'000)});
  call.collective([&] {
    const lockstep::comm::Piece data = call.in_place(tensor, "tensor");
    return lockstep::comm::AllReduce{data.data, data.data, 1};
  });
}

double time_of_call(const std::shared_ptr<lockstep::GroupCore>& group, bool has_place) {
  const at::Tensor tensor = at::zeros({1});
  lockstep::barrier();
  const double start = bench::now();
  for (int call = 0; call < kCalls; ++call) {
    const lockstep::CallScope scope(has_place ? lockstep::CallSite::here() : lockstep::CallSite());
    all_reduce(group, tensor);
  }
  return (bench::now() - start) / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) bench::die(argv[0], "expected the number of turns and a file for the times");
  const lockstep::ProcessGroupGuard world("lockstep");
  const std::string output = argv[2];
  const auto seen = make_group(output + ".seen", world, "seen");
  const auto unseen = make_group(output + ".unseen", world, "unseen");
  seen->record_as(lockstep::flight::add_group("seen", "lockstep", world.rank(), world.world_size(), {}));
  const auto with = [&] { return time_of_call(seen, true); };
  const auto without = [&] { return time_of_call(unseen, false); };
  with();
  without();
  const bench::Turns turns = bench::take_turns(std::atoi(argv[1]), with, without);
  if (world.rank() == 0) bench::write_turns(output, turns);
  seen->leave();
  unseen->leave();
  return 0;
}
