// Where processes wait that are to take the places of dead ranks: keys of a store that outlives the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::elastic_detail {

// What a newcomer needs to know to meet the others.
struct Invitation {
  std::vector<std::string> handles = {};  // of all members, by rank
  std::int64_t uuid = 0;
  std::vector<std::int64_t> places = {};  // of all members, by rank: the rank of each where nobody is missing
  std::int64_t full_size = 0;             // where nobody is missing
  std::int64_t micro_batches = 0;
  std::int64_t newcomers = 0;  // how many of the members
};

struct Waiting {
  std::int64_t number = 0;
  std::string handle;
  std::int64_t wish = -1;  // the place that it is to have if that is free; -1: any
};

// Functions throw StoreError or NetworkError if the store fails.
class WaitingRoom {
 public:
  explicit WaitingRoom(std::shared_ptr<comm::Store> store) : store_(std::move(store)) {}

  // For a newcomer: blocks until it is invited; nullopt: the training is over. `description`: what must be the same on
  // all members, a line each; `wish`: see Waiting. Throws ArgumentError if that of the others is another.
  std::optional<Invitation> wait(const std::string& handle, const std::string& description, std::int64_t wish);
  // For the launcher, which has started this newcomer for `rank`. A launcher that cannot be reached is no error: false.
  bool tell_joined(int rank);

  // The first `most` that wait, also those that come until the deadline. Sends away those of another description.
  std::vector<Waiting> waiting(std::size_t most, Deadline deadline, const std::string& description);
  void invite(std::int64_t number, const Invitation& invitation);
  // A rank has left the world of this number; returns how many have.
  std::int64_t leave(std::int64_t generation);
  // The training is over.
  void close();
  bool is_closed();
  // The launcher starts no newcomer for this rank of the start, which has ended.
  bool nobody_comes(int rank);

 private:
  bool has(const std::string& key);
  std::int64_t count();
  bool refuse(std::int64_t number, const std::string& description);

  std::shared_ptr<comm::Store> store_;
  std::int64_t first_ = 1;  // all before it were invited
};

}  // namespace lockstep::elastic_detail
