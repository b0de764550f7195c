// `lockstep run --config`; with GPUs, on a fake NVML (core/tests/cli/programs/fake_nvml.cpp).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

constexpr const char* kFakeNvml = "LD_LIBRARY_PATH=" LOCKSTEP_FAKE_NVML_FOLDER;

class ConfigMulti : public testing::Test {
 protected:
  Finished run(const std::string& yaml, const std::vector<std::string>& options,
               const std::vector<std::string>& program) {
    folder_.write("conf/c.yaml", yaml);
    std::vector<std::string> words{LOCKSTEP_PROGRAM, "run", "--config", folder_.path("conf/c.yaml")};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), program.begin(), program.end());
    return run_program(words);
  }

  const ScratchFolder folder_;
};

TEST_F(ConfigMulti, TheFileGivesOptionsAndTheCommandLineWins) {
  const std::string yaml = "launch:\n  nproc_per_node: 2\n  max_restarts: 3\n  rdzv_id: from-file\ntrainer:\n  x: 1\n";
  const char* script = "test $RANK = 0 && echo $WORLD_SIZE $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID; true";
  EXPECT_EQ(run(yaml, {}, {"sh", "-c", script}).out, "[rank 0]: 2 3 from-file\n");
  EXPECT_EQ(run(yaml, {"--max_restarts=1", "--nproc-per-node", "1"}, {"sh", "-c", script}).out, "1 1 from-file\n");
  EXPECT_EQ(run("launch:\n  program: [echo, hello]\n", {}, {}).out, "hello\n");
}

TEST_F(ConfigMulti, MistakesAreToldAtOnceAndNothingStarts) {
  const Finished end =
      run("launch:\n  nproc_per_nod: 2\n  max_restarts: -1\n  master_port: 70000\n  rdzv_backend: etcd\n",
          {"--grace", "1"}, {"echo", "never"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.out, "");
  const std::string file = folder_.path("conf/c.yaml");
  EXPECT_EQ(end.err,
            "lockstep: " + file +
                ":2:3: unknown key 'nproc_per_nod' in section 'launch'; the nearest known one is 'nproc_per_node'\n" +
                file + ":3:17: launch.max_restarts: expected a whole number from 0 to 2147483647, found '-1'\n" + file +
                ":4:16: launch.master_port: expected a whole number from 0 to 65535 or null, found '70000'\n" + file +
                ":5:17: launch.rdzv_backend: expected one of c10d, static or null, found 'etcd'\n");
  EXPECT_EQ(run("launch:\n  nproc_per_node: zero\n", {}, {"true"}).err,
            "lockstep: " + file + ":2:19: --nproc-per-node 'zero': expected a number from 1, cpu, gpu or auto\n");
  EXPECT_EQ(run("launch:\n  device_ids: [0]\n  devices: all\n", {}, {"true"}).err,
            "lockstep: " + file + ":3:12: device_ids and devices exclude one another; give one\n");
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "run", "--config", "/none.yaml", "true"}).exit_code, 1);
}

TEST_F(ConfigMulti, PrintedOptionsSayWhereTheyComeFrom) {
  const Finished end = run("launch:\n  max_restarts: 3\n", {"--nproc-per-node=2", "--print-config"}, {});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "launch:\n")) << end.out;
  EXPECT_TRUE(contains(end.out, "c.yaml:2:17\n")) << end.out;
  EXPECT_TRUE(contains(end.out, "# --nproc-per-node\n")) << end.out;
  EXPECT_TRUE(contains(end.out, "# default\n")) << end.out;
  EXPECT_EQ(run(end.out, {}, {"true"}).exit_code, 0) << "what is printed does not read back";
}

TEST_F(ConfigMulti, PrintedOptionsAreThoseOfTheJob) {
  const std::vector<std::string> program{"sh", "-c", "echo it\\'s '#' $RANK: \"$@\"", "x,y", "a b"};
  const std::string printed =
      run("launch:\n  device_ids: [0]\n  program: [no]\n", {"--devices=", "--print-config"}, program).out;
  const Finished end = run(printed, {}, {});
  EXPECT_EQ(end.exit_code, 0) << end.err << printed;
  EXPECT_EQ(end.out, "it's # 0: a b\n") << printed;
  // Under srun, and with --devices, a number that a file gives would win.
  EXPECT_TRUE(contains(printed, "# nnodes: ") && contains(printed, "# nproc_per_node: ")) << printed;
}

TEST_F(ConfigMulti, DeviceIdsChooseGpus) {
  const std::string file = folder_.path("conf/c.yaml");
  const auto with_gpus = [&](const std::string& ids, const std::string& option) {
    folder_.write("conf/c.yaml", "launch:\n  device_ids: " + ids + "\n");
    return run_program({"env", kFakeNvml, "FAKE_NVML_FREE=1,2,3", "LOCKSTEP_LEASES=" + folder_.path("conf"),
                        LOCKSTEP_PROGRAM, "run", "--config", file, option, "sh", "-c",
                        "test $RANK = 0 && echo $CUDA_VISIBLE_DEVICES; true"});
  };
  const Finished end = with_gpus("[2, 1]", "--no-pin");
  EXPECT_EQ(end.out, "[rank 0]: 2\n") << end.err;
  const std::string error = "--devices: there is no GPU 9; there are 3: 0 to 2\n";
  EXPECT_EQ(with_gpus("[9]", "--no-pin").err, "lockstep: " + file + ":2:15: " + error);
  EXPECT_EQ(with_gpus("[2, 1]", "--devices=9").err, "lockstep: " + error);
}

// What runs a job with a file is a program of its own. It is one of the jobs, and finds `lockstep` beside itself.
TEST_F(ConfigMulti, IsTheSameLauncherToOthers) {
  folder_.write("conf/c.yaml", "launch:\n  rdzv_id: with-file\n");
  const Finished end = run_program({"env", "PATH=/usr/bin:/bin", LOCKSTEP_PROGRAM, "run", "--config",
                                    folder_.path("conf/c.yaml"), "lockstep", "ps"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "with-file")) << end.out;
  if (::geteuid() != 0) return;  // else as the first process of a container
  const std::string program = LOCKSTEP_PROGRAM;
  const Finished first = run_program({"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", program, "run",
                                      "--config", folder_.path("conf/c.yaml"), program, "ps"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "with-file")) << first.out;
}

TEST_F(ConfigMulti, HostsOfAJob) {
  const std::string ssh = folder_.path("ssh");
  folder_.write("ssh", "#!/bin/sh\necho \"$@\" >> " + folder_.path("lines") + "\nexec sh -c \"$2\"\n");
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  const Finished end = run("launch:\n  hosts: localhost,b\n  local_addr: 127.0.0.1\n  ssh: " + ssh + "\n", {},
                           {"sh", "-c", "echo $RANK"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "[rank 0]: 0\n") && contains(end.out, "[rank 1]: 1\n")) << end.out;
  // With --devices each launcher would start one worker for each GPU.
  EXPECT_EQ(read_file(folder_.path("lines")).find("--nproc-per-node"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::test
