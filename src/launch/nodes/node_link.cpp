#include "launch/nodes/node_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/host.h"
#include "base/poll.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "store/tcp/user_key.h"

namespace lockstep::launch {
namespace {

constexpr auto kRequestTimeout = std::chrono::seconds(10);
constexpr auto kHostKeyPatience = std::chrono::milliseconds(500);
constexpr auto kLookEvery = std::chrono::milliseconds(20);
// Between one node's try to report a timer and the next one's: mostly the first is enough.
constexpr auto kTimerStep = std::chrono::milliseconds(20);
constexpr const char* kHostKey = "lockstep/launch/host";  // the run id of the launcher that serves the store
constexpr const char* kDefaultRunId = "none";             // torchrun's

struct Meeting {
  std::unique_ptr<comm::TcpStoreServer> server;
  comm::Endpoint endpoint;  // with the server's numbers, where we serve
};

// Byte by byte: what follows is for rank 0.
std::string first_line_of_stdin() {
  std::string line;
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n';) line += byte;
  return line;
}

// The key's file, or the variable, or the user's own key.
Result<std::string> find_job_key(const std::string& path) {
  const Environment environment = Environment::of_process();
  if (path.empty()) {
    if (auto key = environment.get("LOCKSTEP_JOB_KEY")) return *std::move(key);
    return comm::user_key(environment);
  }
  std::ifstream file;
  if (path != "-") file.open(path);
  std::string key = path == "-" ? first_line_of_stdin()
                                : std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (path != "-" && !file.is_open())
    return Status::from_errno(fmt::format("cannot read the job's key from '{}' (--job-key-file)", path), errno);
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (!key.empty()) return key;
  return Status(ErrorCode::kInvalidArgument, fmt::format("'{}' (--job-key-file) is empty, expected a secret", path));
}

// Node 0 behind an address that its machine does not have: that of a Kubernetes service, or of a translating router.
Result<Meeting> serve_everywhere(const MeetingOptions& options, const std::string& key, const Status& why) {
  const Status error = why.with_context(
      fmt::format("this launcher has to serve the rendezvous at {}, and cannot", options.endpoint.text()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, addresses_of_machine());
  if (addresses.empty()) return error;
  comm::TcpStoreServerOptions server;
  server.listen_at = {addresses.front().find(':') == std::string::npos ? "0.0.0.0" : "::", options.endpoint.port};
  server.job_key = key;
  auto started = comm::TcpStoreServer::start(std::move(server));
  if (!started.ok()) return error;
  log::info(fmt::format("{} is no address of this machine: the rendezvous listens on all of its addresses",
                        options.endpoint.host));
  return Meeting{std::move(started).value(), {addresses.front(), options.endpoint.port}};
}

// Serves the store at the endpoint if this launcher is the one to do so.
Result<Meeting> open_meeting(const MeetingOptions& options, const std::string& key) {
  if (options.hosting == Hosting::kElsewhere) return Meeting{nullptr, options.endpoint};
  comm::TcpStoreServerOptions server;
  server.listen_at = options.endpoint;
  server.job_key = key;
  auto started = comm::TcpStoreServer::start(std::move(server));
  if (started.ok()) {
    const comm::Endpoint endpoint = started.value()->endpoint();
    return Meeting{std::move(started).value(), endpoint};
  }
  if (started.status().code() != ErrorCode::kUnavailable) return started.status();
  if (options.hosting == Hosting::kHere) return serve_everywhere(options, key, started.status());
  // Another machine's address, or taken: by the launcher that serves, we assume.
  return Meeting{nullptr, options.endpoint};
}

Status unreachable(const Status& status, const MeetingOptions& options) {
  if (status.code() == ErrorCode::kAborted) return status;
  return status.with_context(
      fmt::format("cannot meet the other nodes at {} (--rdzv-endpoint, or --master-addr and --master-port)",
                  options.endpoint.text()));
}

struct AgreedRun {
  std::string id;
  bool store_outlives_it = false;
};

// The run id on which all agree: the hosting launcher's, if it serves this job alone.
Result<AgreedRun> agree_on_run_id(comm::TcpStore& store, const MeetingOptions& options, bool hosts) {
  const std::string own = options.run_id.empty() ? kDefaultRunId : options.run_id;
  if (hosts) {
    LOCKSTEP_RETURN_IF_ERROR(announce_job(store, own));
    return AgreedRun{own};
  }
  // A launcher sets it as soon as it serves; another program, whose store is for any number of jobs, never does.
  const std::vector<std::string> keys{kHostKey};
  if (!store.wait(keys, Deadline::after(kHostKeyPatience)).ok()) return AgreedRun{own, true};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string hosted, store.get(kHostKey, Deadline::after(kRequestTimeout)));
  if (options.run_id.empty() || options.run_id == hosted) return AgreedRun{hosted};
  return Status(ErrorCode::kMismatch,
                fmt::format("the launcher at {} serves the job '{}', and this one belongs to '{}' (--rdzv-id). Give "
                            "each job an endpoint of its own",
                            options.endpoint.text(), hosted, options.run_id));
}

std::string generation_key(const std::string& run_id) {
  return fmt::format("lockstep/launch/{}/generation", run_id);
}

}  // namespace

std::string events_of_job(const std::string& run_id, const std::string& generation) {
  return fmt::format("lockstep/launch/{}/events{}", run_id, generation);
}

Status announce_job(comm::Store& store, const std::string& run_id) {
  return store.set(kHostKey, run_id);
}

NodeLink::NodeLink(std::unique_ptr<comm::TcpStoreServer> server, std::shared_ptr<comm::TcpStore> store,
                   comm::StoreSession session, NodeInfo self, std::string run_id, std::string generation,
                   std::string job_key, std::string where)
    : server_(std::move(server)),
      store_(std::move(store)),
      session_(std::move(session)),
      self_(std::move(self)),
      run_id_(std::move(run_id)),
      generation_(std::move(generation)),
      job_key_(std::move(job_key)),
      list_(events_of_job(run_id_, generation_)),
      where_(std::move(where)) {}

Result<std::unique_ptr<NodeLink>> NodeLink::join(const MeetingOptions& options, NodeInfo info, int interrupt_fd) {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(info.join_timeout_ms));
  LOCKSTEP_ASSIGN_OR_RETURN(std::string key, find_job_key(options.job_key_file));
  LOCKSTEP_ASSIGN_OR_RETURN(Meeting meeting, open_meeting(options, key));
  comm::TcpStoreOptions client;
  client.server = meeting.endpoint;
  client.job_key = key;
  client.request_timeout = kRequestTimeout;
  auto session = comm::StoreSession::connect(client, deadline, interrupt_fd);
  if (!session.ok()) return unreachable(session.status(), options);
  client.server = session->server();
  auto store = comm::TcpStore::connect(client, Deadline::after(kRequestTimeout));
  if (!store.ok()) return unreachable(store.status(), options);
  info.hosts = meeting.server != nullptr;
  info.address = options.local_addr.empty() ? session->local().host : options.local_addr;
  LOCKSTEP_ASSIGN_OR_RETURN(AgreedRun run, agree_on_run_id(*store.value(), options, info.hosts));
  LOCKSTEP_ASSIGN_OR_RETURN(std::string generation, store.value()->compare_set(generation_key(run.id), "", "0"));
  std::unique_ptr<NodeLink> link(new NodeLink(std::move(meeting.server), std::move(store).value(),
                                              std::move(session).value(), std::move(info), std::move(run.id),
                                              std::move(generation), std::move(key), options.endpoint.text()));
  link->store_outlives_job_ = run.store_outlives_it;
  LOCKSTEP_RETURN_IF_ERROR(link->begin(options.silence));
  return link;
}

Status NodeLink::begin(std::chrono::milliseconds silence) {
  Event lost{.kind = EventKind::kLost, .node = self_.id};
  LOCKSTEP_RETURN_IF_ERROR(session_.leave_will(list_, encode(lost), silence));
  LOCKSTEP_RETURN_IF_ERROR(session_.ask(fmt::format("{}/{}", list_, next_event_)));
  return tell({.kind = EventKind::kJoin, .info = self_});
}

void NodeLink::leave(int interrupt_fd, Deadline deadline) {
  // The next job with this run id begins anew. Where the store goes with this job, who comes late belongs to this one.
  const std::string next = std::to_string(std::atoi(generation_.c_str()) + 1);
  if (store_outlives_job_ && state_.phase() == Phase::kOver) {
    static_cast<void>(store_->compare_set(generation_key(run_id_), generation_, next));
  }
  store_->close();
  session_ = comm::StoreSession();
  while (server_ != nullptr && !deadline.expired() && !server_->wait_until_idle(Deadline::after(kLookEvery))) {
    const auto interrupted = poll_until(interrupt_fd, POLLIN, Deadline::after(std::chrono::nanoseconds(0)));
    if (interrupted.ok() && interrupted.value()) return;
  }
}

Status NodeLink::tell(Event event) {
  event.node = self_.id;
  return store_->push(list_, encode(event)).status();
}

Status NodeLink::serve() {
  if (timer_due_.expired()) {
    timer_due_ = Deadline::never();
    LOCKSTEP_RETURN_IF_ERROR(tell({.kind = EventKind::kTimer, .number = timer_epoch_}));
  }
  while (true) {
    auto arrived = session_.take();
    if (!arrived.ok()) {
      return arrived.status().with_context(
          fmt::format("lost the launcher that serves the rendezvous at {}: it has ended, or its machine cannot be "
                      "reached; look for its error first",
                      where_));
    }
    if (!arrived.value()) break;
    // What cannot be read changes nothing, on any node.
    auto event = decode_event(*arrived.value());
    if (event.ok()) {
      std::vector<Note> notes = state_.apply(event.value());
      has_joined_ = has_joined_ || (event->kind == EventKind::kJoin && event->node == self_.id);
      // What was before this node came is not its news, and the reason of a refusal is told as an error.
      if (has_joined_ && !state_.refusal(self_.id)) std::move(notes.begin(), notes.end(), std::back_inserter(notes_));
    }
    // Nothing else matters now, in particular not whether the store is still there.
    if (has_joined_ && state_.phase() == Phase::kOver) break;
    LOCKSTEP_RETURN_IF_ERROR(session_.ask(fmt::format("{}/{}", list_, ++next_event_)));
  }
  set_timer();
  return {};
}

void NodeLink::set_timer() {
  const std::optional<Timer> timer = state_.timer();
  if (!timer) {
    timer_due_ = Deadline::never();
    timer_epoch_ = -1;
  } else if (timer->epoch != timer_epoch_) {
    timer_epoch_ = timer->epoch;
    timer_due_ = Deadline::after(timer->after + std::max(0, group_rank()) * kTimerStep);
  }
}

}  // namespace lockstep::launch
