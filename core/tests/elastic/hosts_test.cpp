// A training over two machines (network namespaces) that loses a rank of one of them, or all of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "elastic/program.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "support/machines.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

constexpr int kWorld = 4;  // ranks 2 and 3 are on the second machine

// Two trainings: the first one is quiet, and in the second one the victims are killed after a step. With a newcomer,
// which is on the second machine, the weights are the same.
void train_on_machines(const std::vector<int>& victims, bool with_newcomer,
                       const std::function<void(JobOnMachines& job)>& kill) {
  const SharedScratchFolder folder;
  run_on_machines(
      {{2, with_newcomer ? 3 : 2}},
      [&](int number) {
        const bool is_newcomer = number == kWorld;
        setenv("WORLD_SIZE", std::to_string(kWorld).c_str(), 1);  // the newcomer is none of them
        InitOptions options = kElasticWorld;
        if (is_newcomer) options = {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
        const ProcessGroupGuard guard("", options);
        Program quiet, mine;
        if (!is_newcomer) train(quiet, number);
        mine.before_update = [&](std::int64_t step) {
          if (step != 4 || std::find(victims.begin(), victims.end(), number) == victims.end()) return;
          std::puts("ready");
          std::fflush(stdout);
          pause();
        };
        mine.newcomers = with_newcomer ? comm::FileStore::open(folder.path("waiting")).value() : nullptr;
        mine.newcomer_timeout = std::chrono::seconds(30);
        train(mine, number, is_newcomer);
        expect_weights(mine, kWorld - (with_newcomer ? 0 : static_cast<int>(victims.size())));
        if (with_newcomer && !is_newcomer) {
          EXPECT_TRUE(torch::equal(mine.weights(), quiet.weights()));
        }
      },
      [&](JobOnMachines& job) {
        for (const int rank : victims) {
          EXPECT_TRUE(wait_for([&] { return job.process(rank).out_so_far().find("ready") != std::string::npos; }))
              << rank;
        }
        kill(job);
      });
}

TEST(HostsElasticFault, ARankOfTheOtherMachineDies) {
  train_on_machines({3}, /*with_newcomer=*/false, [](JobOnMachines& job) { job.kill(3); });
}

// The first rank of its machine.
TEST(HostsElasticFault, ARankOfTheOtherMachineIsReplaced) {
  train_on_machines({2}, /*with_newcomer=*/true, [](JobOnMachines& job) { job.kill(2); });
}

TEST(HostsElasticFault, TheOtherMachineDies) {
  train_on_machines({2, 3}, /*with_newcomer=*/false, [](JobOnMachines& job) { job.kill_machine(1); });
}

}  // namespace
}  // namespace lockstep::test
