// `lockstep doctor` and `lockstep bench`: what they find on machines that are made up, and on this one.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "doctor/checks.h"
#include "doctor/measure.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::doctor {
namespace {

using test::Finished;
using test::run_program;
using test::ScratchFolder;

const Finding& find(const Findings& findings, const std::string& topic) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.topic == topic; });
  EXPECT_NE(found, findings.end()) << topic;
  static const Finding none;
  return found == findings.end() ? none : *found;
}

TEST(Doctor, TightMachinesGetAdvice) {
  const ScratchFolder root;
  const std::string path = root.path().native();
  root.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 50000 kB\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  root.write("sys/fs/cgroup/job/memory.max", "536870912\n");
  root.write("proc/loadavg", "99.0 1 1 1/1 1\n");
  root.write("proc/sys/vm/memfd_noexec", "2\n");
  root.write("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n");
  root.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  root.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  const Findings memory = check_memory(path);
  EXPECT_EQ(find(memory, "memory").level, Level::kWarning);
  EXPECT_NE(find(memory, "memory").text.find("the control group allows 0.5"), std::string::npos);
  EXPECT_EQ(find(memory, "huge pages").level, Level::kWarning);
  EXPECT_EQ(find(memory, "shm").level, Level::kOk);
  const Findings processor = check_processor(path);
  EXPECT_NE(find(processor, "cores").text.find("the control group pays for 0.5"), std::string::npos);
  EXPECT_EQ(find(processor, "load").level, Level::kWarning);
  EXPECT_EQ(find(check_limits(path), "memfd").level, Level::kProblem);
  EXPECT_NE(find(check_network(path), "tcp").text.find("cubic can be faster"), std::string::npos);
  const Findings gpus = check_gpus(path);
  EXPECT_TRUE(gpus.front().level == Level::kProblem || gpus.front().topic == "driver") << gpus.front().text;
  EXPECT_EQ(check_libtorch(path, "2.15.0").front().level, Level::kWarning);
  root.write("lib/libtorch_cpu.so", "");
  root.write("include/torch/headeronly/version.h",
             "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n");
  EXPECT_EQ(check_libtorch(path, "2.15.0").front().level, Level::kProblem);
  EXPECT_EQ(check_libtorch(path, "2.11.0").front().level, Level::kOk);
  EXPECT_EQ(check_libtorch("", "").front().level, Level::kOk);
}

TEST(Doctor, EveryFindingThatIsNotOkSaysWhatToDo) {
  Findings all;
  for (const auto check : {check_processor, check_memory, check_limits, check_gpus, check_network}) {
    for (const std::string root : {"", "/nonexistent"}) {
      for (const Finding& finding : check(root)) {
        EXPECT_FALSE(finding.text.empty());
        EXPECT_EQ(finding.advice.empty(), finding.level == Level::kOk) << finding.text;
        all.push_back(finding);
      }
    }
  }
  const auto json = nlohmann::json::parse(to_json(all));
  EXPECT_EQ(json["findings"].size(), all.size());
  const std::string text = to_text(all);
  EXPECT_NE(text.find(" ok, "), std::string::npos);
}

TEST(Doctor, ASlowSelfTestIsAWarningAndAFailedOneAProblem) {
  EXPECT_EQ(judge(std::vector<Measurement>{{64 << 20, 2, 2e-2, 1e-2, 0.9e-2}}).level, Level::kOk);
  EXPECT_EQ(judge(std::vector<Measurement>{{64 << 20, 2, 2e-1, 1e-1, 1e-2}}).level, Level::kWarning);
  EXPECT_EQ(judge(Status(ErrorCode::kPeerFailed, "rank 1 died")).level, Level::kProblem);
}

TEST(Bench, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_sizes("4,1K,1.5M,2G").value(), (std::vector<std::size_t>{4, 1024, 3 << 19, std::size_t(2) << 30}));
  for (const char* wrong : {"", "x", "1T", "-4", "4,,8", "3", "1e30", "nan", "4K,"}) {
    EXPECT_EQ(parse_sizes(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(DoctorMulti, ThisMachinePassesItsSelfTest) {
  const Finished end = run_program({LOCKSTEP_PROGRAM, "doctor", "--json"});
  const auto findings = nlohmann::json::parse(end.out);
  EXPECT_EQ(end.exit_code, findings["problems"] == 0 ? 0 : 1) << end.err;
  const auto is_self_test = [](const nlohmann::json& f) {
    return f["topic"] == "self-test" && f["level"] != "problem";
  };
  EXPECT_TRUE(std::any_of(findings["findings"].begin(), findings["findings"].end(), is_self_test)) << end.out;
  const Finished quick = run_program({LOCKSTEP_PROGRAM, "doctor", "--quick"});
  EXPECT_EQ(quick.out.find("self-test"), std::string::npos) << quick.out;
  EXPECT_NE(quick.out.find(" ok, "), std::string::npos) << quick.out << quick.err;
}

TEST(DoctorMulti, UnderTheLauncherItComparesTheRanksOfTheJob) {
  const Finished end = run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "3", LOCKSTEP_PROGRAM, "doctor"});
  EXPECT_NE(end.out.find("3 ranks on 1 machines"), std::string::npos) << end.out << end.err;
  EXPECT_NE(end.out.find("on 3 ranks takes"), std::string::npos) << end.out << end.err;
}

TEST(BenchMulti, MeasuresHereAndInAJob) {
  const auto measured = [](std::vector<std::string> words) {
    words.insert(words.end(), {LOCKSTEP_PROGRAM, "bench", "--sizes", "4,64K", "--seconds", "0.01", "--json"});
    if (words.front() != "env") words.insert(words.end(), {"--nprocs", "3"});
    const Finished end = run_program(words);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    return end.out;
  };
  const auto here = nlohmann::json::parse(measured({}));
  ASSERT_EQ(here.size(), 2U);
  EXPECT_EQ(here[1]["bytes"], 65536);
  EXPECT_EQ(here[1]["ranks"], 3);
  EXPECT_GT(here[1]["least_seconds"], 0);
  const std::string in_job = measured({"env", LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2"});
  EXPECT_NE(in_job.find("\"ranks\": 2"), std::string::npos) << in_job;
  EXPECT_EQ(run_program({LOCKSTEP_PROGRAM, "bench", "--sizes", "x"}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::doctor
