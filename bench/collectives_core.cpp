// Collectives and messages of the torch-free core. --memory shared:OPERATION: buffers of the arena; private:OPERATION:
// any other memory. Started by `lockstep run`; peer: peers/collectives_mpi.cpp.
#include <functional>

#include "core_world.h"
#include "measure_operation.h"

namespace {

using lockstep::bench::Buffers;
using lockstep::bench::check;
using lockstep::bench::Kind;
namespace comm = lockstep::comm;

using Owner = std::unique_ptr<float, std::function<void(float*)>>;

std::vector<comm::ConstPiece> inputs(std::span<float> whole, std::size_t share) {
  std::vector<comm::ConstPiece> pieces;
  for (std::size_t at = 0; at < whole.size(); at += share) pieces.push_back({&whole[at], share * sizeof(float)});
  return pieces;
}

std::vector<comm::Piece> outputs(std::span<float> whole, std::size_t share) {
  std::vector<comm::Piece> pieces;
  for (std::size_t at = 0; at < whole.size(); at += share) pieces.push_back({&whole[at], share * sizeof(float)});
  return pieces;
}

void ping(comm::Communicator& group, const Buffers& b) {
  const auto never = lockstep::Deadline::never();
  if (b.rank > 1) return;
  const comm::Send send{{b.whole.data(), b.whole.size_bytes()}, 1 - b.rank, 0};
  const comm::Receive receive{{b.other.data(), b.other.size_bytes()}, 1 - b.rank, 0};
  if (b.rank == 0) check(group.run(send, never));
  check(group.run(receive, never));
  if (b.rank == 1) check(group.run(send, never));
}

void run(comm::Communicator& group, const Buffers& b) {
  const auto never = lockstep::Deadline::never();
  const auto type = comm::DataType::kFloat32;
  const comm::ConstPiece part_in{b.part.data(), b.part.size_bytes()};
  const comm::Piece part_out{b.part.data(), b.part.size_bytes()};
  switch (b.kind) {
    case Kind::kBroadcast: return check(group.run(comm::Broadcast{b.whole.data(), b.whole.size_bytes(), 0}, never));
    case Kind::kReduce:
      return check(group.run(comm::Reduce{b.whole.data(), b.other.data(), b.whole.size(), type}, never));
    case Kind::kAllGather: return check(group.run(comm::AllGather{part_in, outputs(b.whole, b.share)}, never));
    case Kind::kGather: return check(group.run(comm::Gather{part_in, outputs(b.whole, b.share), 0}, never));
    case Kind::kScatter: return check(group.run(comm::Scatter{inputs(b.whole, b.share), part_out, 0}, never));
    case Kind::kReduceScatter:
      return check(group.run(comm::ReduceScatter{inputs(b.whole, b.share), part_out, type}, never));
    case Kind::kAllToAll:
      return check(group.run(comm::AllToAll{inputs(b.whole, b.share), outputs(b.other, b.share)}, never));
    case Kind::kSendReceive: return ping(group, b);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = lockstep::bench::parse_options(argc, argv);
  const bool shared = options.memory.starts_with("shared:");
  if (!shared && !options.memory.starts_with("private:")) {
    lockstep::bench::die("--memory", "expected shared:OPERATION or private:OPERATION");
  }
  lockstep::bench::CoreWorld world;
  const auto arena = world.arena;
  lockstep::bench::measure_operation(
      options, lockstep::bench::operation_of(options), world.communicator->rank(), world.communicator->group_size(),
      [&](std::size_t bytes) -> Owner {
        if (!shared) return {lockstep::bench::allocate_private(bytes).release(), std::free};
        auto* memory = reinterpret_cast<float*>(lockstep::bench::take(arena->allocate(bytes)));
        return {memory, [arena](float* data) { arena->deallocate(reinterpret_cast<std::byte*>(data)); }};
      },
      [&] { world.barrier(); }, [&](std::span<double> seconds) { world.longest(seconds); },
      [&](const Buffers& buffers) { run(*world.communicator, buffers); });
  return 0;
}
