#include "launch/nodes/node_link.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/host.h"
#include "base/poll.h"
#include "launch/nodes/job_key.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

constexpr auto kRequestTimeout = std::chrono::seconds(10);
constexpr auto kRunIdKeyPatience = std::chrono::milliseconds(500);
constexpr auto kJoinAgainAfter = std::chrono::milliseconds(100);
// All nodes measure the same timer. Each reports it so much later than the one before: mostly only the first has to.
constexpr auto kTimerStep = std::chrono::milliseconds(20);
constexpr const char* kRunIdKey = "lockstep/launch/run_id";  // the run id of the launcher that serves the store
constexpr const char* kDefaultRunId = "none";                // torchrun's

struct Meeting {
  std::unique_ptr<comm::TcpStoreServer> server;
  comm::Endpoint endpoint;  // with the server's numbers, where we serve
};

// Node 0 behind an address that its machine does not have: that of a Kubernetes service, or of a translating router.
Result<Meeting> serve_everywhere(const MeetingOptions& options, const std::string& key, const Status& why) {
  const Status error = why.with_context(
      fmt::format("this launcher has to serve the rendezvous at {}, and cannot", options.endpoint.text()));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto addresses, addresses_of_machine());
  if (addresses.empty()) return error;
  comm::TcpStoreServerOptions server;
  server.listen_at = {addresses.front().find(':') == std::string::npos ? "0.0.0.0" : "::", options.endpoint.port};
  server.job_key = key;
  server.reached_at = options.endpoint;
  auto started = comm::TcpStoreServer::start(std::move(server));
  if (!started.ok()) return error;
  log::info(fmt::format("{} is no address of this machine: the rendezvous listens on all of its addresses",
                        options.endpoint.host));
  return Meeting{std::move(started).value(), {addresses.front(), options.endpoint.port}};
}

// Serves the store at the endpoint if this launcher is the one to do so.
Result<Meeting> open_meeting(const MeetingOptions& options, const std::string& key) {
  if (options.store_place == StorePlace::kElsewhere) return Meeting{nullptr, options.endpoint};
  comm::TcpStoreServerOptions server;
  server.listen_at = options.endpoint;
  server.job_key = key;
  auto started = comm::TcpStoreServer::start(std::move(server));
  if (started.ok()) {
    const comm::Endpoint endpoint = started.value()->endpoint();
    return Meeting{std::move(started).value(), endpoint};
  }
  if (started.status().code() != ErrorCode::kUnavailable) return started.status();
  if (options.store_place == StorePlace::kHere) {
    auto everywhere = serve_everywhere(options, key, started.status());
    comm::TcpStoreOptions client{.server = options.endpoint, .job_key = key};
    // If another launcher of this job serves there, the job says who has this node's number.
    if (everywhere.ok() || !comm::TcpStore::connect(client, Deadline::after(kRequestTimeout)).ok()) return everywhere;
  }
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

// The run id on which all agree: that of the launcher that serves the store, if it serves this job alone.
Result<AgreedRun> agree_on_run_id(comm::TcpStore& store, const MeetingOptions& options, bool serves) {
  const std::string own = options.run_id.empty() ? kDefaultRunId : options.run_id;
  if (serves) {
    LOCKSTEP_RETURN_IF_ERROR(announce_job(store, own));
    return AgreedRun{own};
  }
  // A launcher sets it as soon as it serves; another program, whose store is for any number of jobs, never does.
  const std::vector<std::string> keys{kRunIdKey};
  if (!store.wait(keys, Deadline::after(kRunIdKeyPatience)).ok()) return AgreedRun{own, true};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string served, store.get(kRunIdKey, Deadline::after(kRequestTimeout)));
  if (options.run_id.empty() || options.run_id == served) return AgreedRun{served};
  return Status(ErrorCode::kMismatch,
                fmt::format("the launcher at {} serves the job '{}', and this one belongs to '{}' (--rdzv-id). Give "
                            "each job an endpoint of its own",
                            options.endpoint.text(), served, options.run_id));
}

std::string next_of(const std::string& generation) {
  return std::to_string(std::atoi(generation.c_str()) + 1);
}

std::string generation_key(const std::string& run_id) {
  return fmt::format("lockstep/launch/{}/generation", run_id);
}

}  // namespace

std::string events_of_job(const std::string& run_id, const std::string& generation) {
  return fmt::format("lockstep/launch/{}/events{}", run_id, generation);
}

Status announce_job(comm::Store& store, const std::string& run_id) {
  return store.set(kRunIdKey, run_id);
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
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string key, find_job_key(options.job_key_file, interrupt_fd));
  comm::TcpStoreOptions client;
  client.job_key = key;
  client.request_timeout = kRequestTimeout;
  Status before;  // why the launcher that served here before had no place for this one
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(Meeting meeting, open_meeting(options, key));
    client.server = meeting.endpoint;
    info.serves = meeting.server != nullptr;
    auto session = comm::StoreSession::connect(client, deadline, interrupt_fd);
    if (!session.ok()) {
      const Status failed = unreachable(session.status(), options);
      if (before.ok() || failed.code() == ErrorCode::kAborted) return failed;
      return Status(failed.code(), fmt::format("{} (before that: {})", failed.message(), before.message()));
    }
    auto link = join_over(std::move(session).value(), std::move(meeting.server), client, options, info);
    if (link.ok()) {
      if (Status joined = link.value()->await_join(deadline, interrupt_fd); !joined.ok()) link = std::move(joined);
    }
    if (info.serves || link.status().code() != ErrorCode::kUnavailable || deadline.expired()) return link;
    // It was the launcher of the job before this one, which has just ended.
    if (before.ok()) {
      before = link.status();
      log::info(fmt::format("waits for the next launcher at {}: {}", options.endpoint.text(), before.message()));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const bool interrupted,
                              poll_until(interrupt_fd, POLLIN, Deadline::after(kJoinAgainAfter)));
    if (interrupted) return Status(ErrorCode::kAborted, "interrupted while joining the other nodes");
  }
}

Result<std::unique_ptr<NodeLink>> NodeLink::join_over(comm::StoreSession session,
                                                      std::unique_ptr<comm::TcpStoreServer> server,
                                                      comm::TcpStoreOptions client, const MeetingOptions& options,
                                                      NodeInfo info) {
  client.server = session.server();
  auto store = comm::TcpStore::connect(client, Deadline::after(kRequestTimeout));
  if (!store.ok()) return unreachable(store.status(), options);
  info.address = options.local_addr.empty() ? session.local().host : options.local_addr;
  LOCKSTEP_ASSIGN_OR_RETURN(AgreedRun run, agree_on_run_id(*store.value(), options, info.serves));
  LOCKSTEP_ASSIGN_OR_RETURN(std::string generation, store.value()->compare_set(generation_key(run.id), "", "0"));
  std::unique_ptr<NodeLink> link(new NodeLink(std::move(server), std::move(store).value(), std::move(session),
                                              std::move(info), std::move(run.id), std::move(generation), client.job_key,
                                              options.endpoint.text()));
  link->self_.store_outlives_job = run.store_outlives_it;
  LOCKSTEP_RETURN_IF_ERROR(link->begin());
  return link;
}

Status NodeLink::begin() {
  const Event lost{.kind = EventKind::kLost, .node = self_.id};
  const std::chrono::milliseconds silence(self_.silence_ms);
  LOCKSTEP_RETURN_IF_ERROR(session_.leave_will(list_, encode(lost), silence));
  LOCKSTEP_RETURN_IF_ERROR(session_.ask(fmt::format("{}/{}", list_, next_event_)));
  return tell({.kind = EventKind::kJoin, .info = self_});
}

Status NodeLink::await_join(Deadline deadline, int interrupt_fd) {
  while (!has_joined_) {
    std::array<pollfd, 2> polled{{{fd(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    LOCKSTEP_RETURN_IF_ERROR(poll_until(polled, deadline).status());
    if (polled[1].revents != 0) return {ErrorCode::kAborted, "interrupted while joining the other nodes"};
    if (deadline.expired()) return {ErrorCode::kTimeout, fmt::format("no news from the rendezvous at {}", where_)};
    LOCKSTEP_RETURN_IF_ERROR(serve());
  }
  const auto& members = state_.members();
  const bool ends_soon = std::any_of(members.begin(), members.end(), [](const Member& one) { return one.info.serves; });
  if (!ends_soon || !state_.came_too_late(self_.id)) return {};
  return {ErrorCode::kUnavailable, *state_.refusal(self_.id)};
}

void NodeLink::leave(int interrupt_fd, Deadline deadline) {
  // The next job with this run id gets a new list of events. A store that ends with this job keeps its list, from
  // which launchers that come late learn that the job is over.
  if (self_.store_outlives_job && state_.phase() == Phase::kOver) {
    static_cast<void>(store_->compare_set(generation_key(run_id_), generation_, next_of(generation_)));
  }
  store_->close();
  // The news tell who has left, the connections do not: one to a lost machine may stay open for long.
  while (server_ != nullptr && state_.has_others(self_.id) && !deadline.expired()) {
    std::array<pollfd, 2> polled{{{fd(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}}};
    if (!poll_until(polled, deadline).ok() || polled[1].revents != 0) break;
    auto arrived = session_.take();
    if (!arrived.ok()) break;
    if (!arrived.value()) continue;
    if (const auto event = decode_event(*arrived.value()); event.ok()) state_.apply(event.value());
    if (!session_.ask(fmt::format("{}/{}", list_, ++next_event_)).ok()) break;
  }
  session_ = comm::StoreSession();
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
    const auto event = decode_event(*arrived.value());
    if (event.ok()) take_event(event.value());
    if (joins_next_generation()) {
      LOCKSTEP_RETURN_IF_ERROR(join_next_generation());
      continue;
    }
    const Status asked = session_.ask(fmt::format("{}/{}", list_, ++next_event_));
    // Nothing else matters now, in particular not whether the store is still there.
    if (has_joined_ && state_.phase() == Phase::kOver) break;
    LOCKSTEP_RETURN_IF_ERROR(asked);
  }
  set_timer();
  return {};
}

void NodeLink::take_event(const Event& event) {
  std::vector<Note> notes = state_.apply(event);
  has_joined_ = has_joined_ || (event.kind == EventKind::kJoin && event.node == self_.id);
  // Notes from before this node joined are left out. A refusal is reported as an error, with its reason.
  if (has_joined_ && !state_.refusal(self_.id)) std::move(notes.begin(), notes.end(), std::back_inserter(notes_));
  if (has_joined_ && event.kind == EventKind::kSignal) signals_.push_back(event.number);
}

bool NodeLink::joins_next_generation() const {
  return has_joined_ && self_.store_outlives_job && state_.came_too_late(self_.id);
}

Status NodeLink::join_next_generation() {
  const Outcome& before = state_.outcome();
  const std::string how = !before.reason.empty() ? before.reason : before.failure ? "a worker failed" : "all went well";
  notes_ = {{fmt::format("the job before this one with the id '{}' is over ({}); this is another one", run_id_, how),
             false,
             {}}};
  const std::string next = next_of(generation_);
  LOCKSTEP_ASSIGN_OR_RETURN(generation_, store_->compare_set(generation_key(run_id_), generation_, next));
  list_ = events_of_job(run_id_, generation_);
  state_ = JobState();
  has_joined_ = false;
  next_event_ = 1;
  timer_epoch_ = -1;
  return begin();
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

void say_notes(NodeLink& link, Console& err, bool reports) {
  for (const Note& note : link.take_notes()) {
    if (note.failure && reports) err.say(format_failure(*note.failure));
    if (!note.important || !reports) {
      log::info(note.text);
    } else if (!note.text.empty()) {
      err.say("lockstep: " + note.text);
    }
  }
}

}  // namespace lockstep::launch
