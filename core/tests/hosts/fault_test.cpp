// Machines and ranks that die, stop or disagree, and strangers that connect.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <thread>

#include "engine/calls.h"
#include "engine/process_group.h"
#include "lockstep/base/fd.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::JobOnMachines;
using test::Machines;
using test::ProcessGroup;
using test::run_on_machines;

constexpr auto kBound = 20s;   // a failure is known long before
constexpr auto kTimeout = 5s;  // much longer than an operation takes, on a busy machine too

Status add_up(Communicator& group, std::chrono::nanoseconds timeout, std::size_t count = 300'000) {
  std::vector<float> values(count, 1.0F);
  return group.run(AllReduce{values.data(), values.data(), count}, Deadline::after(timeout));
}

void say(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

void wait_until_said(JobOnMachines& job, const std::string& what) {
  for (int rank = 0; rank < job.world(); ++rank) {
    ASSERT_TRUE(test::wait_for([&] { return job.process(rank).out_so_far().find(what) != std::string::npos; }, 20s))
        << "rank " << rank;
  }
}

// Adds up again and again until it fails.
Status add_up_until_broken(Communicator& group) {
  EXPECT_TRUE(add_up(group, kBound).ok());
  say("ready");
  for (;;) {
    if (Status status = add_up(group, kBound); !status.ok()) return status;
  }
}

void expect_names(const Status& status, ErrorCode code, std::initializer_list<const char*> pieces) {
  EXPECT_EQ(to_string(status.code()), to_string(code)) << status.message();
  for (const char* piece : pieces) EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
}

TEST(HostsFault, AKilledRankIsNamedOnEveryMachine) {
  run_on_machines(
      {{2, 2}},
      [](int) {
        const ProcessGroup group;
        const Status status = add_up_until_broken(*group);
        expect_names(status, ErrorCode::kPeerFailed, {"rank 3", "all_reduce #"});
        EXPECT_EQ(group->health().message(), status.message());
        EXPECT_EQ(add_up(*group, kBound).message(), status.message()) << "the first error stays";
      },
      [](JobOnMachines& job) {
        wait_until_said(job, "ready");
        job.kill(3);
      });
}

// `begin` starts an operation that needs rank 1. Then rank 1 is killed.
void poll_for_a_killed_rank(const std::vector<int>& ranks, Operation (*begin)(Communicator&, test::Buffer&)) {
  run_on_machines(
      {ranks},
      [&](int rank) {
        const ProcessGroup group;
        test::Buffer data(group->arena(), test::Place::kArena, 300'000);
        Operation operation;
        if (rank == 0) operation = begin(*group, data);
        say("ready");
        if (rank == 1) pause();
        if (rank != 0) return;
        while (!operation.is_completed()) std::this_thread::yield();
        expect_names(operation.wait(Deadline::never()), ErrorCode::kPeerFailed, {"rank 1"});
      },
      [](JobOnMachines& job) {
        wait_until_said(job, "ready");
        job.kill(1);
      });
}

TEST(HostsFault, WhoPollsACollectiveLearnsOfADeath) {
  poll_for_a_killed_rank({1, 1}, [](Communicator& group, test::Buffer&) { return group.start(Barrier{}).value(); });
}

TEST(HostsFault, WhoPollsAReceiveLearnsOfADeath) {
  poll_for_a_killed_rank({1, 1}, [](Communicator& group, test::Buffer& data) {
    return group.start(Receive{{data.data(), data.bytes()}, 1, 0}).value();
  });
}

TEST(HostsFault, WhoPollsASendWithinItsMachineLearnsOfADeath) {
  poll_for_a_killed_rank({2, 1}, [](Communicator& group, test::Buffer& data) {
    return group.start(Send{{data.data(), data.bytes()}, 1, 0}).value();
  });
}

TEST(HostsFault, AMachineThatDiesIsNamedOnTheOthers) {
  run_on_machines(
      {{1, 2, 1}},
      [](int) {
        const ProcessGroup group;
        const Status status = add_up_until_broken(*group);
        EXPECT_TRUE(status.message().find("rank 1") != std::string::npos ||
                    status.message().find("rank 2") != std::string::npos)
            << status.message();
        EXPECT_EQ(to_string(status.code()), to_string(ErrorCode::kPeerFailed)) << status.message();
      },
      [](JobOnMachines& job) {
        wait_until_said(job, "ready");
        job.kill_machine(1);
      });
}

enum class Cut { kInterfaceDown, kSilence };

// Machine 1 loses its link while each rank does `work` again and again, which also needs ranks of other machines.
void expect_a_cut_link_to_be_noticed(const std::vector<int>& ranks, Cut cut,
                                     const std::function<Status(Communicator&)>& work) {
  const int first = ranks[0];  // rank of machine 1
  const int after = first + ranks[1];
  run_on_machines(
      {ranks},
      [&](int rank) {
        const ProcessGroup group;
        EXPECT_TRUE(add_up(*group, kBound).ok());
        say("ready");
        Status status;
        while (status.ok()) status = work(*group);
        say("broken");
        const bool is_cut = rank >= first && rank < after;
        expect_names(status, ErrorCode::kPeerFailed, {"or the connection to it broke"});
        EXPECT_EQ(group->health().message(), status.message());
        bool named = false;
        for (int other = 0; other < group->group_size(); ++other) {
          const bool other_is_cut = other >= first && other < after;
          named = named || (is_cut != other_is_cut && status.message().starts_with(fmt::format("rank {} (pid", other)));
        }
        EXPECT_TRUE(named) << status.message();
      },
      [&](JobOnMachines& job) {
        wait_until_said(job, "ready");
        std::this_thread::sleep_for(100ms);  // now they are amid their work
        const Machines& machines = job.machines();
        cut == Cut::kSilence ? machines.cut(1) : machines.unplug(1);
        wait_until_said(job, "broken");
        cut == Cut::kSilence ? machines.mend(1) : machines.plug_in(1);  // leaving signs off at the store
      });
}

constexpr std::size_t kMany = std::size_t{16} << 20;  // floats: 64 MiB

Status sum_of_many(Communicator& group) {
  return add_up(group, kBound, kMany);
}

// Each rank waits for a message of the rank with its index on the other of two machines, which sends none.
Status wait_in_vain(Communicator& group) {
  const int peer = (group.rank() + group.group_size() / 2) % group.group_size();
  int value = 0;
  return group.run(Receive{{&value, sizeof value}, peer, 0}, Deadline::after(kBound));
}

// The ranks of the first of two machines send, and the ranks of the other receive.
Status send_many(Communicator& group, std::chrono::seconds timeout) {
  const int half = group.group_size() / 2;
  std::vector<float> values(kMany);
  const std::size_t bytes = kMany * sizeof(float);
  const Deadline deadline = Deadline::after(timeout);
  return group.rank() < half ? group.run(Send{{values.data(), bytes}, group.rank() + half, 0}, deadline)
                             : group.run(Receive{{values.data(), bytes}, group.rank() - half, 0}, deadline);
}

TEST(HostsFault, ACutLinkIsNoticedWhileNothingIsSent) {
  expect_a_cut_link_to_be_noticed({2, 2}, Cut::kSilence, wait_in_vain);
}
TEST(HostsFault, ACutLinkIsNoticedAmidACollective) {
  expect_a_cut_link_to_be_noticed({2, 2}, Cut::kSilence, sum_of_many);
}
TEST(HostsFault, ACutLinkIsNoticedBySenderAndReceiver) {
  expect_a_cut_link_to_be_noticed({2, 2}, Cut::kSilence, [](Communicator& group) { return send_many(group, kBound); });
}
TEST(HostsFault, ACutLinkOfOneOfThreeMachinesIsNoticedByAll) {
  expect_a_cut_link_to_be_noticed({1, 1, 1}, Cut::kSilence, sum_of_many);
}
TEST(HostsFault, AnInterfaceThatIsDownIsNoticedAmidACollective) {
  expect_a_cut_link_to_be_noticed({2, 2}, Cut::kInterfaceDown, sum_of_many);
}
TEST(HostsFault, AnInterfaceThatIsDownIsNoticedByAllOfThreeMachines) {
  expect_a_cut_link_to_be_noticed({1, 1, 1}, Cut::kInterfaceDown, sum_of_many);
}

constexpr unsigned long kMuchQueued = 100'000;  // bytes

// Whether this machine's kernel has much data for another machine that it cannot send, or that nobody acknowledges.
bool has_data_queued(const Machines& machines, int machine) {
  std::istringstream lines(machines.run(machine, {"cat", "/proc/net/tcp"}));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    unsigned long queued = 0;
    if (std::sscanf(line.c_str(), " %*d: %*s %*s 01 %lx:", &queued) == 1 && queued > kMuchQueued) return true;
  }
  return false;
}

// Its kernel acknowledges what it takes, but soon takes no more. Meanwhile the sender's kernel asks at growing
// distances whether it may send: after the sixth time more than six seconds pass.
TEST(HostsFault, AStoppedRankWhoseWindowIsFullIsNotLost) {
  const test::SharedScratchFolder folder;
  const std::filesystem::path over = folder.path("over");
  run_on_machines(
      {{1, 1}},
      [&](int rank) {
        const ProcessGroup group;
        EXPECT_TRUE(add_up(*group, kBound).ok());
        say("ready");
        for (float done = 0; done == 0;) {
          ASSERT_TRUE(send_many(*group, 60s).ok()) << group->health().message();
          done = rank == 0 && std::filesystem::exists(over) ? 1.0F : 0.0F;
          ASSERT_TRUE(group->run(AllReduce{&done, &done, 1}, Deadline::after(60s)).ok()) << group->health().message();
        }
      },
      [&](JobOnMachines& job) {
        wait_until_said(job, "ready");
        const pid_t stopped = job.process(1).pid();
        EXPECT_TRUE(test::wait_for([&] {
          std::this_thread::sleep_for(50ms);
          ::kill(stopped, SIGSTOP);
          std::this_thread::sleep_for(200ms);
          const bool is_full = has_data_queued(job.machines(), 0);
          if (!is_full) ::kill(stopped, SIGCONT);  // it was stopped amid something else
          return is_full;
        }));
        std::this_thread::sleep_for(14s);
        ::kill(stopped, SIGCONT);
        std::ofstream(over) << "over";
      });
}

TEST(HostsFault, WhoNeverCallsIsNamedOnEveryMachine) {
  run_on_machines({{2, 2}}, [](int rank) {
    const ProcessGroup group;
    EXPECT_TRUE(add_up(*group, kBound).ok());
    if (rank == 3) {
      ASSERT_TRUE(
          test::wait_for([&] { return !group->health().ok() || !(group->progress(), group->health()).ok(); }, 20s));
      expect_names(group->health(), ErrorCode::kTimeout, {"rank(s) 3 (on", "last call all_reduce #1"});
      return;
    }
    expect_names(add_up(*group, kTimeout), ErrorCode::kTimeout,
                 {"all_reduce #2", "rank(s) 3 (on", "last call all_reduce #1"});
  });
}

TEST(HostsFault, DisagreementIsToldToEveryoneAndTheGroupGoesOn) {
  run_on_machines({{2, 1}}, [](int rank) {
    const ProcessGroup group;
    expect_names(add_up(*group, kBound, rank == 2 ? 100 : 101), ErrorCode::kMismatch,
                 {"rank(s) 0, 1 called all_reduce of 101 float32", "rank(s) 2 called all_reduce of 100 float32"});
    std::vector<int> values(3);
    std::vector<Piece> outputs;
    for (int from = 0; from < 3; ++from) outputs.push_back({&values[from], rank == 1 && from == 2 ? 3u : 4u});
    const int mine = rank;
    expect_names(group->run(AllGather{{&mine, 4}, outputs}, Deadline::after(kBound)), ErrorCode::kMismatch,
                 {"rank 1 expects 3 bytes from rank 2, which sends 4"});
    EXPECT_TRUE(add_up(*group, kBound).ok());
  });
}

TEST(HostsFault, AbortReachesEveryMachine) {
  run_on_machines({{1, 2}}, [](int rank) {
    const ProcessGroup group;
    EXPECT_TRUE(add_up(*group, kBound).ok());
    ASSERT_TRUE(group.store().set("done by " + std::to_string(rank), "").ok());
    if (rank == 1) {
      const std::vector<std::string> others{"done by 0", "done by 2"};
      ASSERT_TRUE(group.store().wait(others, Deadline::after(kBound)).ok());
      group->abort("rank 1 has had enough");
    }
    expect_names(add_up(*group, kBound), ErrorCode::kAborted, {"rank 1 has had enough"});
  });
}

TEST(HostsFault, AReceiveFromARankThatLeftFails) {
  run_on_machines({{1, 1}}, [](int rank) {
    const ProcessGroup group;
    if (rank == 1) return;
    int value = 0;
    expect_names(group->run(Receive{{&value, sizeof value}, 1, 7}, Deadline::after(kBound)), ErrorCode::kPeerFailed,
                 {"rank 1", "left", "recv from rank 1 with tag 7"});
  });
}

// TCP ports on which somebody listens in this network namespace, in IPv4.
std::vector<int> listening_ports() {
  std::vector<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    unsigned address = 0, port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %x:%x %*x:%*x %x", &address, &port, &state) == 3 && state == 0x0a)
      ports.push_back(static_cast<int>(port));
  }
  return ports;
}

sockaddr_in port_of_machine(int machine, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, Machines::ipv4(machine).c_str(), &address.sin_addr);
  return address;
}

// Connects to a port of machine 1 and sends bytes that do not follow the protocol.
void disturb(int port, const std::string& bytes) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = port_of_machine(1, port);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// From a machine of the group, which alone gets through.
TEST(HostsFault, HostileBytesAtEveryPortDisturbNobody) {
  run_on_machines({{1, 1}}, [](int rank) {
    const ProcessGroup group;
    EXPECT_TRUE(add_up(*group, kBound).ok());
    if (rank == 1) {
      std::string ports;
      for (const int port : listening_ports()) ports += std::to_string(port) + " ";
      EXPECT_FALSE(ports.empty());
      ASSERT_TRUE(group.store().set("ports", ports).ok());
    } else {
      std::istringstream ports(group.store().get("ports", Deadline::after(kBound)).value());
      std::mt19937 random(3);
      for (int port = 0; ports >> port;) {
        for (const std::size_t size : {0, 1, 7, 8, 64, 4096, 100'000}) {
          std::string bytes(size, '\0');
          for (char& byte : bytes) byte = static_cast<char>(random());
          disturb(port, bytes);
          disturb(port, "GET / HTTP/1.1\r\n\r\n" + bytes);
        }
      }
    }
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(add_up(*group, kBound).ok());
  });
}

// Ports on which somebody listens on a machine, in the protocol of `table`.
std::vector<int> listening_ports_on(const Machines& machines, int machine, const char* table) {
  std::istringstream lines(machines.run(machine, {"cat", table}));
  std::vector<int> ports;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A") ports.push_back(std::stoi(local.substr(local.rfind(':') + 1), nullptr, 16));
  }
  return ports;
}

// What makes UCX 1.13 end its process: its magic number, then a header of a packet that makes no sense.
constexpr char kPoisonBytes[] = "\x78\x56\x34\x12\xbe\xba\xfe\xca\x20\x03\x00\x00\x00\x07\x07\x07";
constexpr const char* kPoison = "\\x78\\x56\\x34\\x12\\xbe\\xba\\xfe\\xca\\x20\\x03\\x00\\x00\\x00\\x07\\x07\\x07";

void expect_closed_to_strangers(const std::string& master, const std::string& target, const char* table) {
  const test::SharedScratchFolder folder;
  const std::filesystem::path over = folder.path("over");
  run_on_machines(
      {{1, 1, 0}, master},
      [&](int rank) {
        const ProcessGroup group;
        EXPECT_TRUE(add_up(*group, kBound).ok());
        say("ready");
        for (float done = 0; done == 0;) {
          done = rank == 0 && std::filesystem::exists(over) ? 1.0F : 0.0F;
          ASSERT_TRUE(group->run(AllReduce{&done, &done, 1}, Deadline::after(kBound)).ok());
        }
      },
      [&](JobOnMachines& job) {
        wait_until_said(job, "ready");
        // Of rank 1's machine: there are the ports of UCX alone, the store's is on rank 0's.
        const std::vector<int> ports = listening_ports_on(job.machines(), 1, table);
        EXPECT_FALSE(ports.empty());
        // From another machine, and as another user of this one.
        for (const int from : {2, 1}) {
          for (const int port : ports) {
            const std::string say_it = fmt::format("printf '{}' > /dev/tcp/{}/{}", kPoison, target, port);
            const test::Finished end =
                test::run_program(job.machines().on(from, {"setpriv", "--reuid", "12345", "--regid", "12345",
                                                           "--clear-groups", "timeout", "0.5", "bash", "-c", say_it}));
            EXPECT_EQ(end.exit_code, 124)
                << "a stranger on machine " << from << " got an answer at port " << port << ": " << end.err;
          }
        }
        std::ofstream(over) << "over";
      });
}

TEST(HostsFault, StrangersDoNotReachThePorts) {
  expect_closed_to_strangers(Machines::ipv4(0), Machines::ipv4(1), "/proc/net/tcp");
}

constexpr int kFirstPort = 40'000;
constexpr int kPorts = 128;

// Connects to all of machine 1's ports at once, and says what ends UCX wherever it gets through; how often that was.
int attack_all_ports() {
  std::vector<Fd> sockets;
  std::vector<pollfd> waiting;
  for (int port = kFirstPort; port < kFirstPort + kPorts; ++port) {
    sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in address = port_of_machine(1, port);
    const int result = ::connect(sockets.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (result != 0 && errno != EINPROGRESS) continue;  // refused at once
    waiting.push_back({sockets.back().get(), POLLOUT, 0});
  }
  int reached = 0;
  for (int look = 0; look < 3; ++look) {
    (void)::poll(waiting.data(), waiting.size(), 1);
    for (pollfd& entry : waiting) {
      if (entry.revents == 0) continue;
      if ((entry.revents & (POLLERR | POLLHUP)) == 0 &&
          ::send(entry.fd, kPoisonBytes, sizeof kPoisonBytes - 1, MSG_NOSIGNAL) > 0)
        ++reached;
      entry.fd = -1;
    }
  }
  return reached;
}

// Between the moment when UCX opens a port and that when it is closed to strangers, one that tries all the time gets
// through now and then. Machine 2 is no part of the group.
TEST(HostsFault, StrangersWhoComeBeforeThePortIsClosedAreSentAway) {
  run_on_machines({{1, 1, 1}}, [](int rank) {
    if (rank == 1)
      std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << kFirstPort << ' ' << kFirstPort + kPorts - 1;
    auto met = rendezvous(RendezvousOptions()).value();
    const std::array<std::string, 1> over{"over"};
    if (rank == 2) {
      while (!met.store->check(over).value()) {
        EXPECT_EQ(attack_all_ports(), 0);
      }
    }
    for (int round = 0; rank < 2 && round < 20; ++round) {
      CommunicatorOptions options;
      options.rank = rank;
      options.group_size = 2;
      options.name = "round " + std::to_string(round);
      options.timeout = kBound;
      const auto group = Communicator::create(met.store, options);
      ASSERT_TRUE(group.ok()) << group.status().message();
      EXPECT_TRUE(add_up(*group.value(), kBound).ok());
    }
    if (rank == 0) {
      ASSERT_TRUE(met.store->set(over[0], "").ok());
    }
    (void)met.release(5s);
  });
}

TEST(HostsFault, StrangersDoNotReachThePortsOverIpv6) {
  expect_closed_to_strangers(Machines::ipv6(0), Machines::ipv6(1), "/proc/net/tcp6");
}

}  // namespace
}  // namespace lockstep::comm
