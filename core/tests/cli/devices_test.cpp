// `lockstep run --devices`, on a fake NVML (programs/fake_nvml.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

constexpr const char* kFakeNvml = "LD_LIBRARY_PATH=" LOCKSTEP_FAKE_NVML_FOLDER;

// Prints what a worker may see.
constexpr const char* kShow = "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE: $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES";

class Devices : public testing::Test {
 protected:
  // `options` of run, on GPUs with this free memory.
  std::vector<std::string> command(const std::vector<std::string>& options, const std::string& script,
                                   const std::vector<std::string>& variables = {}, const char* free = "70,10,40,30") {
    std::vector<std::string> words{"env",
                                   "-u",
                                   "CUDA_VISIBLE_DEVICES",
                                   kFakeNvml,
                                   std::string("FAKE_NVML_FREE=") + free,
                                   "LOCKSTEP_LEASES=" + folder_.path().native()};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), {LOCKSTEP_PROGRAM, "run"});
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", script});
    return words;
  }
  std::string seen(const std::vector<std::string>& options, const std::vector<std::string>& variables = {}) {
    const Finished end = run_program(command(options, kShow, variables));
    EXPECT_EQ(end.exit_code, 0) << end.err;
    std::istringstream stream(end.out);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) {
      const std::size_t prefix = line.find("]: ");
      lines.push_back(prefix == std::string::npos ? line : line.substr(prefix + 3));
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }
  std::string error(const std::vector<std::string>& options, const std::vector<std::string>& variables = {},
                    const char* free = "70,10,40,30") {
    const Finished end = run_program(command(options, "echo never", variables, free));
    EXPECT_NE(end.exit_code, 0);
    EXPECT_EQ(end.out, "");
    return end.err;
  }

  ScratchFolder folder_;
};

using DevicesMulti = Devices;

TEST_F(DevicesMulti, EachWorkerSeesItsOwnGpu) {
  EXPECT_EQ(seen({"--devices", "3,0"}), "0 of 2: PCI_BUS_ID 3\n1 of 2: PCI_BUS_ID 0\n");
  EXPECT_EQ(seen({"--devices", "auto:2"}), "0 of 2: PCI_BUS_ID 0\n1 of 2: PCI_BUS_ID 2\n");
  EXPECT_EQ(seen({"--devices", "all", "--nproc-per-node", "2"}), "0 of 2: PCI_BUS_ID 0,1\n1 of 2: PCI_BUS_ID 2,3\n");
  EXPECT_EQ(seen({"--devices", "0,2", "--visible-devices", "all"}), "0 of 2: PCI_BUS_ID 0,2\n1 of 2: PCI_BUS_ID 0,2\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "a lease was left behind";
}

TEST_F(DevicesMulti, NumbersCountWhatABatchSystemLeaves) {
  EXPECT_EQ(seen({"--devices", "1"}, {"CUDA_VISIBLE_DEVICES=3,2"}), "0 of 1: PCI_BUS_ID 2\n");
  EXPECT_EQ(seen({"--devices", "auto:1"}, {"CUDA_VISIBLE_DEVICES=GPU-fake-1,GPU-fake-3"}), "0 of 1: PCI_BUS_ID 3\n");
  EXPECT_NE(error({"--devices", "0"}, {"CUDA_VISIBLE_DEVICES="}).find("no NVIDIA GPU is visible here"),
            std::string::npos);
  EXPECT_NE(error({"--devices", "1"}, {"CUDA_VISIBLE_DEVICES=3"}).find("there is no GPU 1; there are 1: 0"),
            std::string::npos);
}

TEST_F(DevicesMulti, WrongRequestsSayWhatIsThere) {
  const auto expect = [&](const std::vector<std::string>& options, const char* part) {
    const std::string text = error(options);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect({"--devices", "4"}, "--devices: there is no GPU 4; there are 4: 0 to 3");
  expect({"--devices", "0,0"}, "--devices '0,0': GPU 0 is there twice");
  expect({"--devices", "auto:0"}, "N must be a number from 1");
  expect({"--devices", "auto:5"}, "--devices auto:5: only 4 are visible here");
  expect({"--devices", "zero"}, "'zero' is not a GPU's number");
  expect({"--devices", "0,1", "--nproc-per-node", "3"}, "3 workers cannot share 2 GPUs equally");
  expect({"--devices", "0,1,2", "--nproc-per-node", "2"}, "2 workers cannot share 3 GPUs equally");
}

TEST_F(DevicesMulti, ADriverThatDoesNotWorkIsAnHonestError) {
  EXPECT_NE(error({"--devices", "0"}, {"FAKE_NVML_FAULT=init"}).find("the NVIDIA driver does not work: Unknown Error"),
            std::string::npos);
  EXPECT_NE(error({"--devices", "0"}, {"FAKE_NVML_FAULT=count"}).find("does not list its GPUs"), std::string::npos);
  EXPECT_NE(error({"--devices", "1"}, {"FAKE_NVML_FAULT=gpu1"}).find("GPU 1: it does not answer: Unknown Error"),
            std::string::npos);
  EXPECT_NE(error({"--devices", "all"}, {"FAKE_NVML_FAULT=memory2"}).find("GPU 2: its memory is not known"),
            std::string::npos);
  EXPECT_EQ(seen({"--devices", "auto:1"}, {"FAKE_NVML_FAULT=memory0"}), "0 of 1: PCI_BUS_ID 2\n");
  EXPECT_NE(error({"--devices", "0"}, {}, "").find("no NVIDIA GPU is visible here"), std::string::npos);
  const Finished none = run_program({"env", "LD_LIBRARY_PATH=", LOCKSTEP_PROGRAM, "run", "--devices", "0", "true"});
  if (!std::filesystem::exists("/proc/driver/nvidia")) {
    EXPECT_NE(none.err.find("there is no NVIDIA driver here"), std::string::npos) << none.err;
  }
}

// One worker for each, without --devices. As for CUDA, the list ends where it names no GPU.
TEST_F(DevicesMulti, NprocPerNodeCountsTheGpusThatCudaShows) {
  const auto count = [&](const char* variable) {
    std::vector<std::string> words{"env", "-u", "CUDA_VISIBLE_DEVICES", kFakeNvml, "FAKE_NVML_FREE=1,2,3,4"};
    if (variable != nullptr) words.push_back(std::string("CUDA_VISIBLE_DEVICES=") + variable);
    words.insert(words.end(), {LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "gpu", "sh", "-c",
                               "test $RANK -gt 0 || echo workers: $WORLD_SIZE"});
    const Finished end = run_program(words);
    if (end.exit_code != 0) return end.err;
    return end.out;
  };
  for (const auto& [variable, gpus] :
       {std::pair<const char*, int>(nullptr, 4), {"3,2", 2}, {"3,-1,2", 1}, {"GPU-fake-1", 1}, {"MIG-a,MIG-b", 1}}) {
    const std::string said = count(variable);
    EXPECT_TRUE(contains(said, "workers: " + std::to_string(gpus) + "\n")) << said;
  }
  EXPECT_TRUE(contains(count(""), "no NVIDIA GPU is visible here")) << count("");
}

TEST_F(DevicesMulti, AJobsGpusAreLeasedUntilItIsGone) {
  Process first(command({"--devices", "auto:2"}, "echo up; exec sleep 60"));
  ASSERT_TRUE(wait_for([&] { return contains(first.out_so_far(), "up"); }));
  // The others are what is left, and there are not three.
  EXPECT_EQ(seen({"--devices", "auto:2"}), "0 of 2: PCI_BUS_ID 1\n1 of 2: PCI_BUS_ID 3\n");
  const std::string text = error({"--devices", "0"});
  EXPECT_NE(text.find("GPU 0 is leased by process " + std::to_string(first.pid())), std::string::npos) << text;
  EXPECT_NE(text.find("run --devices auto:2"), std::string::npos) << text;
  EXPECT_NE(error({"--devices", "auto:3"}).find("3 GPUs are wanted and 2 can be had now"), std::string::npos);
  kill(first.pid(), SIGKILL);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(first.wait_until_no_descendant());
  // The file of a killed job is no lease.
  EXPECT_EQ(seen({"--devices", "0,2"}), "0 of 2: PCI_BUS_ID 0\n1 of 2: PCI_BUS_ID 2\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(DevicesMulti, JobsThatChooseAtOnceGetDifferentGpus) {
  std::vector<std::unique_ptr<Process>> jobs;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(std::make_unique<Process>(command({"--devices", "auto:1"}, std::string(kShow) + "; exec sleep 60")));
  }
  std::set<std::string> seen_by;
  for (auto& job : jobs) {
    ASSERT_TRUE(wait_for([&] { return contains(job->out_so_far(), "\n"); })) << job->err_so_far();
    seen_by.insert(job->out_so_far());
  }
  EXPECT_EQ(seen_by.size(), 4U);
}

}  // namespace
}  // namespace lockstep::test
