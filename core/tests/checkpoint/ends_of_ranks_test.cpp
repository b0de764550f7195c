// How a rank may end, and where: each of the others gets an error that names it, in what it does and in what it does
// next. The table takes all ends at all places, with 2, 3 and 5 ranks, on one machine and on two.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "base/host.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "lockstep/store/rendezvous.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

struct End {
  const char* name;
  void (*end)();
  const char* seen;  // by run_processes_with_a_victim
};

void die_of(int signal) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

constexpr End kEnds[] = {
    {"SIGKILL", [] { die_of(SIGKILL); }, "was killed by SIGKILL"},
    {"SIGSEGV", [] { die_of(SIGSEGV); }, "was killed by SIGSEGV"},
    {"_exit(0)", [] { _exit(0); }, ""},
    {"exit(3)", [] { std::exit(3); }, "exited with 3"},
    {"exception",
     [] {
       const rlimit no_core{0, 0};
       setrlimit(RLIMIT_CORE, &no_core);
       std::thread([] { throw std::runtime_error("the test ends this rank by an exception"); }).join();
     },
     "was killed by SIGABRT"},
};

// One run: the victim calls end() at its place.
struct Scene {
  int rank;
  int victim;
  void (*end)();
  std::string folder;

  void end_if_victim() const {
    if (rank == victim) end();
  }
};

struct Place {
  const char* name;
  std::vector<std::string> named;  // in the error
  void (*go)(const Scene& scene);  // does not return on the others
};

torch::Tensor large() {
  return torch::ones({1 << 19});
}

const Place kPlaces[] = {
    {"new_group",
     {"new_group at src/train.cpp:5: rank "},
     [](const Scene& scene) {
       scene.end_if_victim();
       new_group({.timeout = std::chrono::seconds(40)}, {"src/train.cpp", 5});
     }},
    {"before a collective",
     {"before all_reduce #", "in all_reduce #"},
     [](const Scene& scene) {
       scene.end_if_victim();
       all_reduce(torch::ones({4}));
     }},
    {"within a collective",
     {"before all_reduce #", "in all_reduce #"},
     [](const Scene& scene) {
       for (int round = 0;; ++round) {
         const Work work = all_reduce_async(large());
         if (round == 2) scene.end_if_victim();
         work->wait();
       }
     }},
    {"before a send",
     {"recv from rank"},
     [](const Scene& scene) {
       scene.end_if_victim();
       recv(torch::ones({4}), scene.victim);
     }},
    {"within a send",
     {"send to rank"},
     [](const Scene& scene) {
       scene.end_if_victim();
       while (true) send(large(), scene.victim);
     }},
    {"backward",
     {"all_reduce #"},
     [](const Scene& scene) {
       torch::manual_seed(1);
       torch::nn::Linear net(64, 64);
       DistributedDataParallel<torch::nn::Linear> ddp(net);
       for (int step = 0;; ++step) {
         const torch::Tensor output = ddp->forward(torch::ones({2, 64}));
         if (step == 1) {
           output.register_hook([&](const torch::Tensor& gradient) {
             scene.end_if_victim();
             return gradient;
           });
         }
         output.sum().backward();
       }
     }},
    {"optimizer's step",
     {"#"},
     [](const Scene& scene) {
       torch::nn::Linear net(64, 64);
       ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
       for (int step = 0;; ++step) {
         for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
         if (step == 1) scene.end_if_victim();
         optimizer.step();
       }
     }},
    {"checkpoint",
     {"barrier #"},
     [](const Scene& scene) {
       if (scene.rank == scene.victim) {
         torch::nn::Linear net(512, 512);
         checkpoint::CheckpointManager manager(scene.folder, {.asynchronous = true});
         checkpoint::Checkpoint state;
         state.add_model(*net);
         manager.save(1, state);
         scene.end();
       }
       barrier();
     }},
    {"leaving",
     {"barrier #"},
     [](const Scene& scene) {
       if (scene.rank == scene.victim) {
         destroy_process_group();
         scene.end();
       }
       barrier();
     }},
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// The processes of the ranks, which they write down before the victim ends.
class Pids {
 public:
  Pids()
      : pids_(static_cast<pid_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Pids() { munmap(pids_, kBytes); }
  Pids(const Pids&) = delete;
  Pids& operator=(const Pids&) = delete;
  pid_t& operator[](int rank) const { return pids_[rank]; }

 private:
  static constexpr std::size_t kBytes = 4096;
  pid_t* const pids_;
};

void expect_named(const std::string& error, const Scene& scene, const Pids& pids,
                  const std::vector<std::string>& named) {
  const std::string who = fmt::format("rank {} (pid {} on {})", scene.victim, pids[scene.victim], host_name());
  EXPECT_NE(error.find(who), std::string::npos) << "no " << who << " in: " << error;
  const bool has_operation = std::any_of(named.begin(), named.end(),
                                         [&](const std::string& one) { return error.find(one) != std::string::npos; });
  EXPECT_TRUE(has_operation) << "none of " << testing::PrintToString(named) << " in: " << error;
}

// Calls run(scene) in the ranks of each world, for each end.
template <typename Run>
void for_all_ends(int place, const Run& run) {
  const ScratchFolder folder;
  int turn = place;
  for (const int world : {2, 3, 5}) {
    for (const int machines : {1, 2}) {
      for (const End& end : kEnds) {
        const int victim = turn++ % world;
        SCOPED_TRACE(fmt::format("{} of rank {} of {}, {} machine(s)", end.name, victim, world, machines));
        run_processes_with_a_victim(
            world, victim,
            [&](int rank) {
              setenv("LOCKSTEP_MACHINE", fmt::format("machine{}", rank % machines).c_str(), 1);
              run(Scene{rank, victim, end.end, folder.path(std::to_string(turn))});
            },
            end.seen);
      }
    }
  }
}

class EndsOfRanksFault : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Places, EndsOfRanksFault, testing::Range(0, static_cast<int>(std::size(kPlaces))),
                         [](const auto& info) {
                           std::string name = kPlaces[info.param].name;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

TEST_P(EndsOfRanksFault, AreErrorsOfTheOthersThatNameThem) {
  const Place& place = kPlaces[GetParam()];
  const Pids pids;
  for_all_ends(GetParam(), [&](const Scene& scene) {
    const ProcessGroupGuard group;
    pids[scene.rank] = getpid();
    const std::string first = error_of([&] {
      barrier();  // another rank may see the victim's end before this rank sees that all have come
      place.go(scene);
    });
    expect_named(first, scene, pids, place.named);
    const std::string next = error_of([] { barrier(); });
    EXPECT_NE(next.find(fmt::format("rank {} (pid {}", scene.victim, pids[scene.victim])), std::string::npos) << next;
  });
}

// Before there is a world nobody can look at the process: the error names the rank when the time is over.
TEST(JoiningRankFault, EndsAreErrorsOfTheOthersThatNameIt) {
  for_all_ends(0, [](const Scene& scene) {
    if (scene.rank == scene.victim) {
      const auto met = comm::rendezvous(comm::RendezvousOptions());
      scene.end();
    }
    const std::string error = error_of([] { init_process_group("", {.timeout = std::chrono::milliseconds(300)}); });
    const bool named = error.find(fmt::format("rank {}", scene.victim)) != std::string::npos ||
                       error.find(fmt::format("rank(s) {}", scene.victim)) != std::string::npos;
    EXPECT_TRUE(named) << error;
    EXPECT_NE(error_of([] { barrier(); }), "no error");
  });
}

}  // namespace
}  // namespace lockstep::test
