// The numbers of --metrics-port, and the line about a slow rank, of real jobs. The workers record without LibTorch
// (programs/recording_worker.cpp).
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "support/process.h"

namespace lockstep::test {
namespace {

std::vector<std::string> steps(const std::string& what, int number, const std::vector<std::string>& options) {
  std::vector<std::string> command{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "3"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {LOCKSTEP_RECORDING_WORKER, what, std::to_string(number)});
  return command;
}

// The port that the launcher has chosen; empty: it has not said so.
std::string url_in(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex("lockstep: metrics are at (http://[^\\n]+)")) ? found[1].str() : "";
}

std::string fetch(const std::string& url) {
  return run_program({"python3", "-c",
                      "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], "
                      "timeout=30).read().decode())",
                      url})
      .out;
}

// Whether the text is what Prometheus's format says: each sample behind the HELP and TYPE lines of its metric, no
// sample twice, counters and histograms with the names that belong to them, buckets that do not fall.
void expect_format(const std::string& text) {
  const std::regex sample(R"re(([a-z_]+)(\{([a-z]+="[^"\\]*",?)+\})? ([0-9.e+-]+|NaN|\+Inf))re");
  std::set<std::string> seen;
  std::set<std::string> metrics;
  std::string metric;
  std::string type;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_match(line, found, std::regex("# HELP ([a-z_]+) .+"))) {
      metric = found[1];
      EXPECT_TRUE(metrics.insert(metric).second) << line;
    } else if (std::regex_match(line, found, std::regex("# TYPE ([a-z_]+) (counter|gauge|histogram)"))) {
      EXPECT_EQ(found[1], metric);
      type = found[2];
      EXPECT_EQ(type == "counter", metric.ends_with("_total")) << line;
    } else {
      ASSERT_TRUE(std::regex_match(line, found, sample)) << line;
      const std::string suffix = found[1].str().substr(std::min(metric.size(), found[1].str().size()));
      const bool fits =
          type == "histogram" ? suffix == "_bucket" || suffix == "_sum" || suffix == "_count" : suffix.empty();
      EXPECT_TRUE(found[1].str().starts_with(metric) && fits) << line;
      EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  }
  EXPECT_EQ(metrics.size(), 10U);
}

double value_of(const std::string& text, const std::string& sample) {
  const std::size_t at = text.find("\n" + sample + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + sample.size() + 2));
}

// 2 s.
TEST(MetricsMulti, TheNumbersOfARunningJob) {
  Process process(steps("slow", 40, {"--metrics-port", "0"}));
  std::string url;
  ASSERT_TRUE(wait_for([&] { return !(url = url_in(process.err_so_far())).empty(); }));
  std::string text;
  ASSERT_TRUE(wait_for([&] {
    text = fetch(url);
    return value_of(text, R"(lockstep_steps_total{rank="2"})") >= 20;
  })) << text;
  expect_format(text);
  EXPECT_EQ(value_of(text, "lockstep_workers_alive"), 3);
  EXPECT_EQ(value_of(text, "lockstep_restarts_total"), 0);
  const double calls = value_of(text, R"(lockstep_operations_total{rank="0",operation="all_reduce"})");
  EXPECT_GE(calls, 20);
  EXPECT_EQ(value_of(text, R"(lockstep_operation_bytes_total{rank="0",operation="all_reduce"})"), 4096 * calls);
  EXPECT_EQ(value_of(text, R"(lockstep_operations_unseen_total{rank="0"})"), 0);
  // 20 of 50 ms for the others, and none for the last rank.
  const double waited = value_of(text, R"(lockstep_time_seconds_total{rank="0",part="waiting"})");
  EXPECT_GE(waited, 0.2);
  EXPECT_LE(value_of(text, R"(lockstep_time_seconds_total{rank="2",part="waiting"})"), waited / 2);
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST(MetricsMulti, APortInUseIsAnErrorBeforeAnyWorkerStarts) {
  Process process(steps("steps", 40, {"--metrics-port=0"}));
  std::string url;
  ASSERT_TRUE(wait_for([&] { return !(url = url_in(process.err_so_far())).empty(); }));
  const std::string port = url.substr(url.rfind(':') + 1, url.rfind('/') - url.rfind(':') - 1);
  const Finished end = run_program(steps("steps", 1, {"--metrics-port", port}));
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "--metrics-port " + port + ": cannot listen at 127.0.0.1")) << end.err;
  EXPECT_EQ(run_program(steps("steps", 1, {"--metrics-port", "70000"})).exit_code, 2);
}

// 13 s, in which the workers sleep: the launcher looks for ten seconds before it says anything.
TEST(SlowRankMulti, IsNamedOnce) {
  Process slow(steps("slow", 250, {}));
  Process off(steps("slow", 250, {"--slow-rank", "0"}));
  Process even(steps("steps", 250, {"--slow-rank", "25"}));
  const Finished end = slow.finish();
  const std::size_t at = end.err.find("lockstep: rank 2 (pid ");
  ASSERT_NE(at, std::string::npos) << end.err;
  EXPECT_TRUE(contains(end.err, " came last to ")) << end.err;
  EXPECT_EQ(end.err.find("came last", end.err.find("came last") + 1), std::string::npos) << end.err;
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_FALSE(contains(off.finish().err, "came last"));
  EXPECT_FALSE(contains(even.finish().err, "came last"));
}

}  // namespace
}  // namespace lockstep::test
