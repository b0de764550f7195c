// What the launcher says of its ranks: the line about a slow one, and the numbers for Prometheus.
#include "launch/job/rank_watch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>

#include "base/poll.h"

namespace lockstep::launch {
namespace {

using flight::RankRecord;
using namespace std::chrono_literals;

constexpr std::uint64_t kMs = 1'000'000;

// Steps of 50 ms of three ranks; `late` comes 20 ms after the others.
std::vector<RankRecord> steps(std::uint64_t first, std::uint64_t last, int late) {
  std::vector<RankRecord> records(3);
  for (int rank = 0; rank < 3; ++rank) {
    RankRecord& record = records[static_cast<std::size_t>(rank)];
    record.rank = rank;
    record.pid = 100 + rank;
    record.host = "here";
    record.now = last * 50 * kMs + 25 * kMs;
    record.groups.push_back({"world", rank, 3, {0, 1, 2}, false});
    for (std::uint64_t number = first; number <= last; ++number) {
      flight::Operation one;
      one.serial = number;
      one.outcome = flight::Outcome::kDone;
      one.op = flight::Op::kAllReduce;
      one.type = 6;
      one.called = one.waited = number * 50 * kMs + (rank == late ? 20 * kMs : 0);
      one.ended = number * 50 * kMs + 21 * kMs;
      one.number = number;
      one.input = one.output = 1024;
      one.group = 0;
      record.operations.push_back(one);
      record.steps.push_back({one.ended, 0});
    }
    record.total = record.steps_done = last;
  }
  return records;
}

TEST(SlowRankRule, SaysItOnceAndWhenItIsOver) {
  SlowRankRule rule(0.1);
  std::vector<std::string> said;
  const auto look = [&](int times, int late, std::uint64_t& at) {
    for (int i = 0; i < times; ++i, ++at) said.push_back(rule.look(steps(20 * at, 20 * at + 100, late)));
  };
  std::uint64_t at = 1;
  look(9, 1, at);
  look(1, -1, at);  // so long it was a chance
  look(9, 1, at);
  for (const std::string& one : said) EXPECT_EQ(one, "");
  look(20, 1, at);
  EXPECT_EQ(said[19],
            "rank 1 (pid 101 on here) came last to 100 of the last 100 collectives, in the median by 20 ms: the others "
            "waited for it for 40 % of the time");
  for (std::size_t i = 20; i < said.size(); ++i) EXPECT_EQ(said[i], "");
  const std::size_t before = said.size();
  look(12, -1, at);
  EXPECT_EQ(said[before + 9], "rank 1 is no longer slow");
  EXPECT_EQ(said[before + 10], "");
}

TEST(SlowRankRule, SaysNothingOfRanksThatDoNothingNew) {
  SlowRankRule rule(0.1);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(rule.look(steps(1, 100, 2)), "");
}

TEST(SlowRankRule, SaysNothingBelowThePart) {
  SlowRankRule rule(0.5);
  for (std::uint64_t i = 1; i < 30; ++i) EXPECT_EQ(rule.look(steps(20 * i, 20 * i + 100, 2)), "");
}

TEST(RankNumbers, AddUpOverLooksAndProcesses) {
  RankNumbers numbers;
  const auto look = [&](std::uint64_t first, std::uint64_t last, int pid) {
    auto records = steps(first, last, 1);
    records[0].pid = pid;
    numbers.add(records[0], flight::Waits(records), 0);
  };
  look(1, 10, 1);
  look(5, 20, 1);
  look(26, 30, 1);  // the recorder has forgotten five
  look(1, 3, 2);    // another process has the place
  std::map<std::string, std::string> lines;
  numbers.print(7, lines);
  EXPECT_EQ(lines["lockstep_operations_total"], "lockstep_operations_total{rank=\"7\",operation=\"all_reduce\"} 28\n");
  EXPECT_EQ(lines["lockstep_operation_bytes_total"],
            "lockstep_operation_bytes_total{rank=\"7\",operation=\"all_reduce\"} 114688\n");
  EXPECT_EQ(lines["lockstep_operations_unseen_total"], "lockstep_operations_unseen_total{rank=\"7\"} 5\n");
  EXPECT_EQ(lines["lockstep_steps_total"], "lockstep_steps_total{rank=\"7\"} 33\n");
  const std::string& steps_text = lines["lockstep_step_seconds"];
  EXPECT_NE(steps_text.find("_bucket{rank=\"7\",le=\"0.1\"} 25\n"), std::string::npos) << steps_text;
  EXPECT_NE(steps_text.find("_count{rank=\"7\"} 25\n"), std::string::npos) << steps_text;
  const std::string& times = lines["lockstep_time_seconds_total"];
  EXPECT_NE(times.find("part=\"waiting\"} 0.56\n"), std::string::npos) << times;  // 28 times 20 ms
  EXPECT_NE(times.find("part=\"communication\"} 0.028\n"), std::string::npos) << times;
}

// A server, and clients in the same thread.
class MetricsServerTest : public testing::Test {
 protected:
  Fd connect() const {
    const std::string url = server_->url();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  // Lets the server work until the client has all that it gets. "": nothing; it may have been cut off.
  std::string answer(const Fd& client) {
    std::string all;
    const Deadline limit = Deadline::after(20s);
    while (!limit.expired()) {
      std::vector<pollfd> polled{{client.get(), POLLIN, 0}};
      server_->add_to(polled);
      EXPECT_TRUE(poll_until(polled, earlier(limit, server_->next_due())).ok());
      server_->serve([] { return std::string("numbers\n"); });
      if (polled[0].revents == 0) continue;
      char bytes[4096];
      const ssize_t got = recv(client.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return all;
      all.append(bytes, static_cast<std::size_t>(got));
    }
    return "no end";
  }
  std::string ask(const std::string& request) {
    const Fd client = connect();
    EXPECT_EQ(send(client.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    return answer(client);
  }

  std::unique_ptr<MetricsServer> server_ = MetricsServer::listen("127.0.0.1", 0).value();
};

TEST_F(MetricsServerTest, AnswersRequestsForTheNumbersAlone) {
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 8\r\n"
            "Connection: close\r\n\r\nnumbers\n");
  EXPECT_EQ(ask("GET /metrics?x=1 HTTP/1.0\n\n").find("HTTP/1.1 200 OK"), 0U);
  EXPECT_EQ(ask("GET /etc/passwd HTTP/1.1\r\n\r\n").find("HTTP/1.1 404 "), 0U);
  EXPECT_EQ(ask("POST /metrics HTTP/1.1\r\n\r\n").find("HTTP/1.1 405 "), 0U);
  EXPECT_EQ(ask(std::string("\0\xff GET\r\n\r\n", 10)).find("HTTP/1.1 405 "), 0U);
}

TEST_F(MetricsServerTest, StrangersCostLittle) {
  EXPECT_EQ(ask(std::string(8192, 'x')), "");  // too long
  std::vector<Fd> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(connect());
    server_->serve([] { return std::string(); });
  }
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\n\r\n").find("HTTP/1.1 200 OK"), 0U);
  std::vector<pollfd> polled;
  server_->add_to(polled);
  EXPECT_LE(polled.size(), 17U);
  EXPECT_EQ(answer(silent.back()), "");  // its time is over: 5 s
}

TEST_F(MetricsServerTest, APortInUseIsNamed) {
  const std::string url = server_->url();
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  const Status status = MetricsServer::listen("127.0.0.1", port).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find("--metrics-port " + std::to_string(port)), std::string::npos) << status.message();
  EXPECT_EQ(MetricsServer::listen("192.0.2.1", 0).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::launch
