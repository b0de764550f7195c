// How a TCP store handles requests, without sockets: it answers at once, or keeps a request until its keys exist.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/deadline.h"
#include "store/keys/key_value_table.h"
#include "store/tcp/wire.h"

namespace lockstep::comm {

// Not thread-safe. A client has at most one request under way.
class StoreService {
 public:
  using ClientId = std::uint64_t;
  using Answer = std::function<void(ClientId, const wire::Message&)>;  // must not call back into the service

  // `where` names the store in messages.
  StoreService(std::string where, Answer answer) : where_(std::move(where)), answer_(std::move(answer)) {}

  void handle(ClientId client, wire::Message request);
  // The client is gone: drops its waiting request, and carries out its will.
  void drop(ClientId client);
  // Answers kTimeout to requests whose deadline has passed.
  void expire(Deadline::Clock::time_point now);
  // When expire has to be called next; never when nobody waits with a deadline.
  Deadline next_expiry() const;

 private:
  struct Parked {
    StoreCall call;
    std::string waits_for;  // the first key that is absent
  };

  Status write(KeyValueTable::Change change, std::string_view key, std::string_view value);
  Result<StoreAnswer> push(const std::string& list, const std::string& value);
  void wake_changed();
  wire::Message values_of(const std::vector<std::string>& keys) const;
  void answer_or_park(ClientId client, StoreCall call);
  void wake(std::string_view key);
  Parked unpark(ClientId client);

  const std::string where_;
  const Answer answer_;
  KeyValueTable table_;
  std::map<ClientId, Parked> parked_;
  std::map<std::string, std::set<ClientId>, std::less<>> waiting_;  // by the keys that end their waits
  std::set<std::pair<Deadline::Clock::time_point, ClientId>> expiries_;
  std::map<ClientId, std::pair<std::string, std::string>> wills_;  // list and value
  std::vector<std::string> changed_;                               // keys set by the request being handled
};

}  // namespace lockstep::comm
