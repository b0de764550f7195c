// UcxWorker: what the groups of a process share of UCX on one network interface: a worker, its port, and one connection
// to each process of another machine. A group's transport is a channel of the worker. So a further group costs no
// descriptor and no connection.
//
// Thread-safe: one lock guards the worker and the inboxes of all channels. A group holds its own lock when it calls, so
// nothing here calls a group. Whoever progresses the worker takes in messages for all channels.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "net/network_interface.h"
#include "net/port_guard.h"
#include "net/ucx/ucx_context.h"
#include "net/ucx/ucx_inbox.h"

namespace lockstep::comm {

class UcxWorker;

// A connection to another worker. It stays until it breaks or this worker ends.
struct UcxConnection {
  UcxWorker* worker;
  std::string address;
  ucp_ep_h endpoint = nullptr;  // null: it has broken
  bool is_lost = false;
  std::set<std::pair<UcxInbox*, std::uint64_t>> users = {};  // channels of this worker, each with its peer's channel
};

class UcxWorker {
 public:
  // Bytes of a message, with what follows the frame.
  struct Content {
    std::string_view text;
    const void* data = nullptr;
    std::size_t bytes = 0;
  };

  // The worker of this process on this interface; made if no group has it. From now on `admitted` may reach its port,
  // beside those who could before.
  static Result<std::shared_ptr<UcxWorker>> of_process(const UcxLibrary& ucx, const NetworkInterface& interface,
                                                       const Admitted& admitted);
  // One that is not shared, as that of another process.
  static Result<std::shared_ptr<UcxWorker>> make(const UcxLibrary& ucx, const NetworkInterface& interface,
                                                 const Admitted& admitted);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // The UCX address, by which other workers connect to this one.
  const std::string& address() const { return address_; }

  // Registers a channel and returns its number. Only who was told the number can reach the channel.
  Result<std::uint64_t> join(UcxInbox& inbox) LOCKSTEP_EXCLUDES(mutex_);
  // The channel `from` counts on a connection to the channel `to` of the worker at this address.
  std::shared_ptr<UcxConnection> connect(const std::string& address, UcxInbox& inbox, std::uint64_t from,
                                         std::uint64_t to) LOCKSTEP_EXCLUDES(mutex_);
  // Sends a message of a channel. `request` ends when its memory is not needed any more; null: nobody waits for it.
  void send(const std::shared_ptr<UcxConnection>& connection, UcxInbox& inbox, const UcxFrame& frame,
            const Content& content, TransportRequest* request) LOCKSTEP_EXCLUDES(mutex_);
  // Offers a large active message to its receiver.
  void offer(const std::shared_ptr<UcxConnection>& connection, UcxInbox& inbox, UcxFrame frame, const Content& content,
             TransportRequest& request) LOCKSTEP_EXCLUDES(mutex_);
  void receive(UcxInbox& inbox, const UcxInbox::Key& key, void* data, std::size_t bytes, TransportRequest& request)
      LOCKSTEP_EXCLUDES(mutex_);

  // Moves what is under way, without waiting, and takes the channel's events. Whether anything of the channel moved.
  bool progress(UcxInbox& inbox, std::vector<UcxInbox::Event>& events) LOCKSTEP_EXCLUDES(mutex_);
  bool has_news(const UcxInbox& inbox) LOCKSTEP_EXCLUDES(mutex_);
  // Waits until the channel has news, at most for `limit`. Of several threads one waits for UCX, and progresses the
  // worker for all of them.
  void sleep(const UcxInbox& inbox, std::chrono::microseconds limit) LOCKSTEP_EXCLUDES(mutex_);
  void look_for_cut_links() LOCKSTEP_EXCLUDES(mutex_);
  void close_to_programs() LOCKSTEP_EXCLUDES(mutex_);

  // Takes the channel away; its last events say how its requests ended. `gently`: first sends what is under way, for at
  // most `limit`. A connection that a send of the channel is stuck in is broken, because UCX would still read the
  // send's memory; other channels lose their peers there too.
  void leave(UcxInbox& inbox, std::uint64_t number, bool gently, std::chrono::milliseconds limit,
             std::vector<UcxInbox::Event>& events) LOCKSTEP_EXCLUDES(mutex_);

 private:
  // A message that UCX has under way, in one or more parts.
  struct Sending {
    UcxWorker* worker;
    UcxInbox* inbox;  // null: of no channel any more
    TransportRequest* request;
    std::uint64_t offer;                        // the number of the offer that this is; 0: none
    std::shared_ptr<UcxConnection> connection;  // null: the connection is UCX's own
    std::string heads = {};                     // the frame and the text of each part
    std::size_t parts = 0;                      // that are not sent
    ucs_status_t status = UCS_OK;
    std::list<Sending>::iterator self = {};
  };

  UcxWorker(const UcxLibrary& ucx, std::unique_ptr<UcxContext> context) : ucx_(ucx), context_(std::move(context)) {}
  Status open(const Admitted& admitted) LOCKSTEP_EXCLUDES(mutex_);
  Status create(const Admitted& admitted) LOCKSTEP_REQUIRES(mutex_);
  void admit(const Admitted& admitted) LOCKSTEP_EXCLUDES(mutex_);
  Status check(ucs_status_t status, const char* what) const;
  Status explain(Status failed) const;

  std::shared_ptr<UcxConnection> connection_to(const std::string& address) LOCKSTEP_REQUIRES(mutex_);
  void break_connection(UcxConnection& connection) LOCKSTEP_REQUIRES(mutex_);
  void close_lost() LOCKSTEP_REQUIRES(mutex_);
  void take_connections() LOCKSTEP_REQUIRES(mutex_);

  // Null: there is none any more.
  std::shared_ptr<UcxConnection> connection_of(UcxInbox& inbox, std::uint64_t peer) const LOCKSTEP_REQUIRES(mutex_);
  // Hands a message to UCX. `inbox`: the channel that waits for its end; null: none does. If the connection has broken,
  // the message has failed. `endpoint`: that of the connection, or one of UCX's own.
  void start(const std::shared_ptr<UcxConnection>& connection, UcxInbox* inbox, const UcxFrame& frame,
             const Content& content, TransportRequest* request = nullptr) LOCKSTEP_REQUIRES(mutex_);
  void start(const std::shared_ptr<UcxConnection>& connection, ucp_ep_h endpoint, UcxInbox* inbox, UcxFrame frame,
             const Content& content, TransportRequest* request) LOCKSTEP_REQUIRES(mutex_);
  void end_part(Sending& sending, ucs_status_t status) LOCKSTEP_REQUIRES(mutex_);
  // Waits until the channel's sends have ended.
  void end_sends(const UcxInbox& inbox, Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  // Waits until everything has arrived at the other ends.
  void flush(Deadline deadline) LOCKSTEP_EXCLUDES(mutex_);
  void arrived(const UcxFrame& frame, std::string_view text, const void* data, std::size_t bytes, ucp_ep_h reply)
      LOCKSTEP_REQUIRES(mutex_);

  void progress() LOCKSTEP_REQUIRES(mutex_);
  void wake_sleepers() LOCKSTEP_REQUIRES(mutex_);

  // Called by UCX, while this thread holds the lock.
  static void on_sent(void* ucx_request, ucs_status_t status, void* user_data) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  static void on_error(void* argument, ucp_ep_h endpoint, ucs_status_t status) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  static ucs_status_t on_message(void* argument, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes,
                                 const ucp_am_recv_param_t* param) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;

  const UcxLibrary& ucx_;
  const std::unique_ptr<UcxContext> context_;
  // These three do not change once the worker is open.
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;

  Mutex mutex_;
  Admitted admitted_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int> listeners_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, UcxInbox*> channels_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<UcxConnection>> connections_ LOCKSTEP_GUARDED_BY(mutex_);
  std::list<Sending> sendings_ LOCKSTEP_GUARDED_BY(mutex_);
  bool some_lost_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // connections_ has a broken one
  bool connected_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // somebody has called close_to_programs()
  int looks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;           // how often sleep() still looks for new connections

  // Of the threads that sleep, one waits for UCX's event descriptor, without the lock.
  const UcxInbox* watched_for_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;    // its channel; null: there is no such thread
  bool is_signalled_ LOCKSTEP_GUARDED_BY(mutex_) = false;                // it has been woken
  std::multiset<const UcxInbox*> sleepers_ LOCKSTEP_GUARDED_BY(mutex_);  // the channels of the others
  CondVar changed_;
};

// A transport that is a channel of this worker. `description`: see Transport::describe().
Result<std::unique_ptr<Transport>> open_channel(std::shared_ptr<UcxWorker> worker, ActiveMessageHandler handler,
                                                std::string description);

}  // namespace lockstep::comm
