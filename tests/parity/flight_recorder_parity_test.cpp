// PyTorch's analyser (torch.distributed.flight_recorder) reads what ranks of this library have recorded, and names the
// rank that is missing and the call that differs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <vector>

#include "flight/export.h"
#include "flight/record.h"
#include "lockstep/c10d/distributed.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

// Every collective once, then `end`; the analyser's words.
std::string analysed(const std::function<void(int rank)>& end) {
  constexpr int kWorld = 3;
  const test::ScratchFolder folder;
  const auto path = [&](int rank) { return folder.path("rank_" + std::to_string(rank) + ".flight"); };
  std::vector<flight::RankRecord> records(kWorld);
  test::run_processes(kWorld, [&](int rank) {
    std::ofstream(path(rank)).close();
    ::setenv("LOCKSTEP_RECORDER", path(rank).c_str(), 1);
    const ProcessGroupGuard group;
    const torch::Tensor two = torch::ones({2});
    const std::vector<torch::Tensor> list{torch::ones({2}), torch::ones({2}), torch::ones({2})};
    all_reduce(torch::ones({10}));
    broadcast(torch::ones({3}, torch::kLong), 1);
    reduce(torch::ones({4}), 2);
    all_gather(list, two);
    all_gather_into_tensor(torch::empty({6}), two);
    reduce_scatter(two, list);
    reduce_scatter_tensor(two, torch::ones({6}));
    all_to_all(list, list);
    all_to_all_single(torch::empty({6}), torch::ones({6}));
    gather(two, rank == 0 ? at::TensorList(list) : at::TensorList(), 0);
    scatter(two, rank == 0 ? at::TensorList(list) : at::TensorList(), 0);
    all_reduce_coalesced({torch::ones({4}), torch::ones({5})});
    barrier();
    end(rank);
  });
  for (int rank = 0; rank < kWorld; ++rank) {
    auto record = flight::read_record(path(rank));
    EXPECT_TRUE(record.ok()) << record.status().message();
    if (record.ok()) records[static_cast<std::size_t>(rank)] = std::move(record).value();
  }
  const Status written = flight::write_pytorch(records, folder.path("fr"));
  EXPECT_TRUE(written.ok()) << written.message();
  return test::run_python("flight_recorder.py", {folder.path("fr")});
}

void expect_all_good(const std::string& said) {
  for (const char* name : {"all_reduce #1", "broadcast #2", "reduce #3", "all_gather #4", "_all_gather_base #5",
                           "reduce_scatter #6", "_reduce_scatter_base #7", "all_to_all #8", "all_to_all_single #9",
                           "gather #10", "scatter #11", "allreduce_coalesced #12", "barrier #14"}) {
    const std::size_t at = said.find(std::string("c10d:") + name + " ");
    EXPECT_NE(at, std::string::npos) << name << " in:\n" << said;
    if (at == std::string::npos) continue;
    const std::string line = said.substr(at, said.find('\n', at) - at);
    EXPECT_NE(line.find("good"), std::string::npos) << line;
  }
}

TEST(FlightRecorderParity, AQuietRunIsGood) {
  const std::string said = analysed([](int) {});
  expect_all_good(said);
  EXPECT_EQ(said.find(", bad"), std::string::npos) << said;
}

TEST(FlightRecorderParity, NamesTheRankThatIsMissing) {
  const std::string said = analysed([](int rank) {
    if (rank == 1) return;
    EXPECT_ANY_THROW(all_reduce(torch::ones({5}), {.timeout = std::chrono::milliseconds(300)}));
  });
  expect_all_good(said);
  EXPECT_NE(said.find("all_reduce #15 of world:world, [[5]], good, missing [1]"), std::string::npos) << said;
}

TEST(FlightRecorderParity, NamesTheCallThatDiffers) {
  const std::string said = analysed([](int rank) { EXPECT_ANY_THROW(all_reduce(torch::ones({rank == 1 ? 6 : 5}))); });
  expect_all_good(said);
  EXPECT_NE(said.find("all_reduce #15 of world:world, [[5]], bad"), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep
