#include "launch/nodes/hosts_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/host.h"
#include "base/poll.h"
#include "launch/job/job_services.h"
#include "launch/job/worker_environment.h"
#include "launch/nodes/event.h"
#include "launch/nodes/node_link.h"
#include "launch/output/console.h"
#include "launch/output/tail.h"
#include "launch/output/worker_stream.h"
#include "launch/process/memfd.h"
#include "launch/process/process_tree.h"
#include "launch/process/program.h"
#include "launch/process/signal_watch.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "store/tcp/socket.h"

namespace lockstep::launch {
namespace {

constexpr int kSshFailed = 255;
constexpr std::chrono::seconds kNodesFarewell(5);
constexpr int kMostLogReads = 1024;

// The address from which this machine reaches a host; empty: its name is not known here (it may be ssh's alone).
std::string address_towards(const std::string& name) {
  const std::string host = name.substr(name.rfind('@') == std::string::npos ? 0 : name.rfind('@') + 1);
  const AddressList found = find_addresses(host, "22", SOCK_DGRAM, 0);
  if (found == nullptr) return {};
  const Fd probe(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Sends nothing: the kernel looks up the route.
  if (!probe.valid() || connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0) return {};
  auto local = comm::local_endpoint(probe.get());
  return local.ok() ? local->host : std::string();
}

Result<std::string> own_address(const HostsOptions& options) {
  if (!options.local_addr.empty()) return options.local_addr;
  std::string found = loopback_address();
  for (const Host& host : options.hosts) {
    if (is_this_machine(host.name)) continue;
    if (std::string address = address_towards(host.name); !address.empty()) return address;
    LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, addresses_of_machine());
    if (!addresses.empty()) found = addresses.front();
  }
  return found;
}

// The key as the standard input of a launcher.
Result<Fd> key_file(const std::string& key) {
  Fd fd(memfd_create("lockstep_key", MFD_CLOEXEC));
  if (!fd.valid()) return Status::from_errno("cannot make a file in memory for the job's key", errno);
  LOCKSTEP_RETURN_IF_ERROR(write_memfd(fd.get(), key + "\n", "the job's key"));
  if (lseek(fd.get(), 0, SEEK_SET) != 0) return Status::from_errno("cannot rewind the job's key", errno);
  return fd;
}

std::vector<std::string> launcher_words(const HostsOptions& options, const std::string& self,
                                        const std::string& endpoint, std::size_t number) {
  const Host& host = options.hosts[number];
  const std::string conf = options.rdzv_conf.empty() ? "" : options.rdzv_conf + ",";
  std::vector<std::string> words{self,
                                 "run",
                                 "--node-rank",
                                 std::to_string(number),
                                 "--rdzv-endpoint",
                                 endpoint,
                                 "--rdzv-conf",
                                 fmt::format("{}is_host=false,reports={}", conf, number == 0),
                                 "--job-key-file",
                                 "-"};
  const std::string workers = host.workers > 0 ? std::to_string(host.workers) : options.nproc_per_node;
  if (!workers.empty()) words.insert(words.end(), {"--nproc-per-node", workers});
  words.insert(words.end(), options.options.begin(), options.options.end());
  words.push_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

// What --ssh is given for a host, or the launcher's own words on this machine.
Result<std::vector<std::string>> command_words(const HostsOptions& options, const std::string& self,
                                               const std::string& endpoint, std::size_t number) {
  const std::string& host = options.hosts[number].name;
  std::vector<std::string> words = launcher_words(options, self, endpoint, number);
  if (is_this_machine(host)) return words;
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) return Status::from_errno("cannot find out the current folder", error.value());
  std::vector<std::string> command = options.ssh;
  command.push_back(host);
  command.push_back("cd " + quote_for_shell({folder}) + " && exec " + quote_for_shell(words));
  return command;
}

class HostsJob {
 public:
  HostsJob(const HostsOptions& options, Consoles& consoles, SignalWatch& signals)
      : options_(options), consoles_(consoles), signals_(signals) {}

  Result<int> run();

 private:
  Status open_meeting();
  Result<Command> command_for(std::size_t number);
  Status add_stream(Console& console, int& fd, Tail* tail = nullptr);
  Status step(ProcessTree& tree);
  void take_exit(const Exit& exit);
  void take_signal(ProcessTree& tree);
  // Signals that only the workers understand go to the workers of all nodes.
  void pass_on_signals();
  // Tells all launchers to end.
  void end_job(int code, const std::string& reason);

  const HostsOptions& options_;
  Consoles& consoles_;
  SignalWatch& signals_;
  std::string key_;
  std::string run_id_;
  std::string self_;  // this program's path, which the hosts have too
  std::unique_ptr<comm::TcpStoreServer> server_;
  std::shared_ptr<comm::TcpStore> store_;
  std::vector<Fd> launchers_ends_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  int alive_ = 0;
  int code_ = 0;  // of the last launcher that has failed and could say why; of the last one if none could
  int signal_ = 0;
  bool over_ = false;
  bool went_well_ = false;
  bool is_code_of_loss_ = true;   // whether no launcher has failed yet, or none of them could say why
  std::deque<Tail> said_;         // by launcher: the end of what it has written to stderr
  std::string unsaid_end_;        // how the first launcher that failed has ended; empty: none has, or its end was told
  std::size_t first_failed_ = 0;  // the launcher of unsaid_end_
  std::optional<Deadline> kill_at_;
};

Status HostsJob::open_meeting() {
  LOCKSTEP_ASSIGN_OR_RETURN(key_, make_job_key());
  run_id_ = options_.run_id;
  if (run_id_.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string random, make_job_key());
    run_id_ = random.substr(0, 16);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string address, own_address(options_));
  comm::TcpStoreServerOptions server;
  server.listen_at = {address, 0};
  server.job_key = key_;
  auto started = comm::TcpStoreServer::start(std::move(server));
  if (!started.ok()) return started.status().with_context("cannot serve the rendezvous of --hosts (--local-addr)");
  server_ = std::move(started).value();
  comm::TcpStoreOptions client;
  client.server = server_->endpoint();
  client.job_key = key_;
  client.request_timeout = std::chrono::seconds(10);
  LOCKSTEP_ASSIGN_OR_RETURN(store_, comm::TcpStore::connect(client, Deadline::after(client.request_timeout)));
  return announce_job(*store_, run_id_);
}

Status HostsJob::add_stream(Console& console, int& fd, Tail* tail) {
  LOCKSTEP_ASSIGN_OR_RETURN(FdPair pipe, make_pipe("cannot make a pipe for a launcher's output"));
  fd = pipe.writer.get();
  launchers_ends_.push_back(std::move(pipe.writer));
  WorkerStream::Settings settings;
  settings.console = &console;
  settings.tail = tail;
  streams_.push_back(std::make_unique<WorkerStream>(std::move(pipe.reader), nullptr, std::move(settings)));
  return {};
}

Result<Command> HostsJob::command_for(std::size_t number) {
  Command command;
  // `lockstep ps` finds the job's name there.
  command.environment =
      merge_environment(current_environment(), {{"LOCKSTEP_JOB_KEY", ""}, {"TORCHELASTIC_RUN_ID", run_id_}});
  LOCKSTEP_ASSIGN_OR_RETURN(Fd key, key_file(key_));
  command.stdin_fd = key.get();
  launchers_ends_.push_back(std::move(key));
  LOCKSTEP_RETURN_IF_ERROR(add_stream(consoles_.out(), command.stdout_fd));
  LOCKSTEP_RETURN_IF_ERROR(add_stream(consoles_.err(), command.stderr_fd, &said_.emplace_back()));
  LOCKSTEP_ASSIGN_OR_RETURN(command.arguments, command_words(options_, self_, server_->endpoint().text(), number));
  command.executable = self_;
  if (is_this_machine(options_.hosts[number].name)) return command;
  const std::string path = Environment::of_process().get("PATH").value_or("/usr/bin:/bin");
  auto ssh = find_executable(options_.ssh.front(), path);
  if (!ssh.ok()) return ssh.status().with_context("--ssh");
  command.executable = std::move(ssh).value();
  return command;
}

Result<int> HostsJob::run() {
  LOCKSTEP_ASSIGN_OR_RETURN(self_, own_program());
  LOCKSTEP_RETURN_IF_ERROR(open_meeting());
  std::vector<Command> commands;
  for (std::size_t number = 0; number < options_.hosts.size(); ++number) {
    LOCKSTEP_ASSIGN_OR_RETURN(Command command, command_for(number));
    commands.push_back(std::move(command));
  }
  auto started = ProcessTree::start(commands, signals_.fd());
  if (started.status().code() == ErrorCode::kAborted) return 128 + signals_.take();
  LOCKSTEP_ASSIGN_OR_RETURN(ProcessTree tree, std::move(started));
  launchers_ends_.clear();
  alive_ = tree.running();
  while (tree.running() > 0 && !(kill_at_ && kill_at_->expired())) LOCKSTEP_RETURN_IF_ERROR(step(tree));
  const Status leftovers = tree.end();
  if (!leftovers.ok()) consoles_.err().say("lockstep: " + leftovers.message());
  for (const auto& stream : streams_) {
    for (int i = 0; i < kMostLogReads && stream->open() && stream->read_some(); ++i) {
    }
    if (stream->open()) stream->finish();
  }
  if (signal_ != 0) return 128 + signal_;
  if (went_well_) return 0;
  // Another command than ssh may fail without a word.
  if (!unsaid_end_.empty() && said_[first_failed_].lines().empty()) consoles_.err().say("lockstep: " + unsaid_end_);
  return code_;
}

Status HostsJob::step(ProcessTree& tree) {
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}, {signals_.workers_fd(), POLLIN, 0}, {tree.fd(), POLLIN, 0}};
  Deadline due = kill_at_.value_or(Deadline::never());
  for (const auto& stream : streams_) {
    if (stream->wants_read()) polled.push_back({stream->fd(), POLLIN, 0});
    if (const auto partial = stream->partial_due()) due = earlier(due, Deadline::at(*partial));
  }
  consoles_.add_to(polled);
  LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, due).status().with_context("cannot wait for the launchers"));
  for (const auto& stream : streams_) {
    if (stream->wants_read()) stream->read_some();
    stream->show_partial_if_due(WorkerStream::Clock::now());
  }
  while (tree.running() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<Exit> exit, tree.next_exit());
    if (!exit) break;
    take_exit(*exit);
  }
  pass_on_signals();
  if (polled[0].revents != 0) take_signal(tree);
  consoles_.serve();
  consoles_.flush();
  return {};
}

void HostsJob::take_exit(const Exit& exit) {
  --alive_;
  // A launcher that has run nothing never ends with 0: if one does, the job went well, also after losses that it could
  // do without.
  const bool may_lose = options_.min_nodes < static_cast<int>(options_.hosts.size());
  went_well_ = went_well_ || (!exit.failed() && may_lose);
  if (!exit.failed() || signal_ != 0 || went_well_ || over_) return;
  const std::string& host = options_.hosts[static_cast<std::size_t>(exit.index)].name;
  std::string what = fmt::format("the launcher on host {} ended with {}", host, describe_exit(exit));
  if (exit.code == kSshFailed && !is_this_machine(host)) what += fmt::format(" ({} failed)", options_.ssh.front());
  // For launchers that cannot say why themselves. The end of the whole job is reported by the first host's launcher,
  // unless this is the one that has ended.
  const bool ends = alive_ < options_.min_nodes;
  const bool silent = exit.signal != 0 || exit.code == kSshFailed || exit.code == 126 || exit.code == 127;
  const bool tells = silent && (!ends || exit.index == 0);
  if (tells) consoles_.err().say("lockstep: " + what);
  if (code_ == 0 && !tells) {
    unsaid_end_ = what;
    first_failed_ = static_cast<std::size_t>(exit.index);
  }
  // The loss of a host does not hide the code with which the job itself has failed on another host.
  if (!silent || is_code_of_loss_) code_ = exit_code_of(exit);
  is_code_of_loss_ = is_code_of_loss_ && silent;
  over_ = ends;
  if (ends) end_job(code_, what);
}

void HostsJob::end_job(int code, const std::string& reason) {
  const Event event{.kind = EventKind::kEnd, .node = "hosts", .text = reason, .code = code};
  if (!store_->push(events_of_job(run_id_), encode(event)).ok() || alive_ == 0) return;
  // A launcher that has not joined yet gets the event when it joins.
  if (!kill_at_) kill_at_ = Deadline::after(2 * options_.grace + kNodesFarewell);
}

void HostsJob::pass_on_signals() {
  while (const int number = signals_.take_for_workers()) {
    const auto told =
        store_->push(events_of_job(run_id_), encode({.kind = EventKind::kSignal, .node = "hosts", .number = number}));
    if (!told.ok())
      log::warning(fmt::format("{} did not reach the workers: {}", signal_name(number), told.status().message()));
  }
}

void HostsJob::take_signal(ProcessTree& tree) {
  const int number = signals_.take();
  if (number == 0) return;
  if (signal_ == 0) {
    signal_ = number;
    end_job(128 + number, fmt::format("the job was asked to end by {}", signal_name(number)));
    if (!signals_.at_once()) return;
  }
  kill_at_ = Deadline::after(std::chrono::nanoseconds(0));
}

}  // namespace

Result<int> run_on_hosts(const HostsOptions& options) {
  SignalWatch signals;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto consoles, Consoles::open());
  auto code = HostsJob(options, *consoles, signals).run();
  const auto patience = std::max<std::chrono::milliseconds>(options.grace, std::chrono::seconds(1));
  const bool signalled = code.ok() && code.value() > 128;
  consoles->finish(signals, signalled ? Deadline::after(patience) : Deadline::never(), patience);
  return code;
}

}  // namespace lockstep::launch
