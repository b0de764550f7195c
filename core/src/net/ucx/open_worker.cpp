// How a UcxWorker is made, whom its port admits, and how it and its channels end.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "base/foreign_descriptors.h"
#include "base/random.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/log.h"
#include "net/port_guard.h"
#include "net/ucx/ucx_worker.h"

namespace lockstep::comm {
namespace {

constexpr auto kCloseLimit = std::chrono::milliseconds(200);

// The workers of a process, by the interface's name and whether it is for IPv6.
struct Workers {
  Mutex mutex;
  std::map<std::pair<std::string, bool>, std::weak_ptr<UcxWorker>> known LOCKSTEP_GUARDED_BY(mutex);
};

// The group works without the filter, as long as no stranger connects. Each group would say the same.
void warn_once(const Status& not_closed) {
  static std::atomic<bool> said{false};
  if (!not_closed.ok() && !said.exchange(true)) log::warning(not_closed.message());
}

}  // namespace

Result<std::shared_ptr<UcxWorker>> UcxWorker::of_process(const UcxLibrary& ucx, const NetworkInterface& interface,
                                                         const Admitted& admitted) {
  static constinit OfProcess<Workers> workers;
  Workers& all = workers.get();
  MutexLock lock(all.mutex);
  std::weak_ptr<UcxWorker>& known = all.known[{interface.name, interface.is_ipv6}];
  if (auto worker = known.lock()) {
    worker->admit(admitted);
    return worker;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto worker, make(ucx, interface, admitted));
  known = worker;
  return worker;
}

Result<std::shared_ptr<UcxWorker>> UcxWorker::make(const UcxLibrary& ucx, const NetworkInterface& interface,
                                                   const Admitted& admitted) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context, UcxContext::make(ucx, interface));
  std::shared_ptr<UcxWorker> worker(new UcxWorker(ucx, std::move(context)));
  LOCKSTEP_RETURN_IF_ERROR(worker->open(admitted));
  return worker;
}

Status UcxWorker::check(ucs_status_t status, const char* what) const {
  if (status == UCS_OK) return {};
  return {ErrorCode::kUnavailable,
          fmt::format("UCX {}, {}: {}", ucx_.ucp_get_version_string(), what, ucx_.text_of(status))};
}

Status UcxWorker::open(const Admitted& admitted) {
  MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(create(admitted));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUcxMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::on_message;
  handler.arg = this;
  return check(ucx_.ucp_worker_set_am_recv_handler(worker_, &handler), "handler of active messages");
}

// UCX 1.13 ends the process if a stranger connects while the worker is made. So its ports are closed to strangers
// before they listen. If the kernel does not allow this, they are closed right after.
Status UcxWorker::create(const Admitted& admitted) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  Status closed;
  std::vector<int> listeners;
  const auto close_port = [&](int socket) {
    listeners.push_back(socket);
    if (Status status = close_to_strangers(socket, admitted); !status.ok()) closed = std::move(status);
  };
  ucs_status_t created = UCS_OK;
  const auto watched =
      run_watching_listen([&] { created = ucx_.ucp_worker_create(context_->handle(), &params, &worker_); }, close_port);
  LOCKSTEP_RETURN_IF_ERROR(watched.status());
  LOCKSTEP_RETURN_IF_ERROR(explain(check(created, "worker")));
  LOCKSTEP_RETURN_IF_ERROR(check(ucx_.ucp_worker_get_efd(worker_, &event_fd_), "event descriptor"));
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(check(ucx_.ucp_worker_get_address(worker_, &address, &bytes), "address"));
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucx_.ucp_worker_release_address(worker_, address);
  listeners_ = take_worker_descriptors(event_fd_, listeners, address_);
  if (!watched.value()) {
    for (const int listener : listeners_) close_port(listener);
  }
  admitted_ = admitted;
  warn_once(closed);
  return {};
}

// UCX does not say what it lacks.
Status UcxWorker::explain(Status failed) const {
  constexpr std::size_t kNeeded = 16;  // more than a worker opens
  rlimit limit{};
  if (failed.ok() || getrlimit(RLIMIT_NOFILE, &limit) != 0) return failed;
  const std::size_t open = own_descriptors().size();
  if (open + kNeeded < limit.rlim_cur) return failed;
  return {failed.code(),
          fmt::format("{}: this process has {} descriptors open and may have {}. Its groups over several "
                      "machines need some 6 together, and one more for each process that they connect "
                      "to: close files, or raise the limit (ulimit -n)",
                      failed.message(), open, limit.rlim_cur)};
}

void UcxWorker::admit(const Admitted& admitted) {
  MutexLock lock(mutex_);
  std::set<std::string> all(admitted_.addresses.begin(), admitted_.addresses.end());
  all.insert(admitted.addresses.begin(), admitted.addresses.end());
  const bool is_new = all.size() > admitted_.addresses.size() || (admitted.loopback && !admitted_.loopback);
  if (!is_new) return;
  admitted_ = {{all.begin(), all.end()}, admitted_.loopback || admitted.loopback};
  for (const int listener : listeners_) warn_once(close_to_strangers(listener, admitted_));
}

Result<std::uint64_t> UcxWorker::join(UcxInbox& inbox) {
  MutexLock lock(mutex_);
  std::uint64_t number = 0;
  do {
    LOCKSTEP_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(&number, 1))));
  } while (!channels_.emplace(number, &inbox).second);
  return number;
}

void UcxWorker::end_sends(const UcxInbox& inbox, Deadline deadline) {
  const auto is_of_inbox = [&](const Sending& sending) { return sending.inbox == &inbox; };
  for (bool some = true; some && !deadline.expired();) {
    MutexLock lock(mutex_);
    some = std::any_of(sendings_.begin(), sendings_.end(), is_of_inbox);
    if (some) progress();
  }
}

// UCX asks the other ends whether all has arrived.
void UcxWorker::flush(Deadline deadline) {
  std::vector<void*> flushing;
  {
    MutexLock lock(mutex_);
    for (const auto& [address, connection] : connections_) {
      if (connection->endpoint == nullptr) continue;
      ucp_request_param_t param{};
      void* const request = ucx_.ucp_ep_flush_nbx(connection->endpoint, &param);
      if (UCS_PTR_IS_PTR(request)) flushing.push_back(request);
    }
  }
  while (!flushing.empty()) {
    MutexLock lock(mutex_);
    progress();
    const bool expired = deadline.expired();
    std::erase_if(flushing, [&](void* request) {
      if (!expired && ucx_.ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucx_.ucp_request_free(request);
      return true;
    });
  }
}

void UcxWorker::leave(UcxInbox& inbox, std::uint64_t number, bool gently, std::chrono::milliseconds limit,
                      std::vector<UcxInbox::Event>& events) {
  bool is_last = false;
  {
    MutexLock lock(mutex_);
    channels_.erase(number);
    is_last = channels_.empty();
    for (const auto& [peer, address] : inbox.openers()) {
      const std::shared_ptr<UcxConnection> connection = connection_to(address);
      start(connection, nullptr, {peer, number, UcxFrame::Kind::kEnd}, {});
    }
  }
  // While there are other channels, what UCX has taken leaves with what these send.
  if (gently) is_last ? flush(Deadline::after(limit)) : end_sends(inbox, Deadline::after(limit));
  {
    MutexLock lock(mutex_);
    std::set<std::shared_ptr<UcxConnection>> stuck;
    for (const Sending& sending : sendings_) {
      if (sending.inbox == &inbox && sending.connection->endpoint != nullptr) stuck.insert(sending.connection);
    }
    for (const auto& connection : stuck) break_connection(*connection);
  }
  end_sends(inbox, Deadline::after(kCloseLimit));
  MutexLock lock(mutex_);
  const Status closed(ErrorCode::kPeerFailed, "the connection is closed");
  for (Sending& sending : sendings_) {  // UCX may settle it later
    if (sending.inbox != &inbox) continue;
    if (sending.request != nullptr) inbox.end(sending.request, closed);
    sending.inbox = nullptr;
  }
  inbox.cancel(closed);
  for (const auto& [address, connection] : connections_) {
    auto& users = connection->users;
    users.erase(users.lower_bound({&inbox, 0}), users.upper_bound({&inbox, ~std::uint64_t{0}}));
  }
  inbox.take_events(events);
}

UcxWorker::~UcxWorker() {
  for (const auto& [address, connection] : connections_) connection->is_lost = true;
  if (worker_ == nullptr) return;
  close_lost();
  const Deadline deadline = Deadline::after(kCloseLimit);
  while (!sendings_.empty() && !deadline.expired()) ucx_.ucp_worker_progress(worker_);
  ucx_.ucp_worker_destroy(worker_);
}

}  // namespace lockstep::comm
