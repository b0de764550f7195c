// AddressExchange: how the ranks of a group that spans machines learn from the store where the others are. Only members
// of the job can read the store. Rank 0's token becomes the group's token.
#pragma once

#include <string>
#include <vector>

#include "engine/core/topology.h"
#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "net/transport.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

class AddressExchange {
 public:
  AddressExchange(Store& store, const Topology& topology, const GroupNames& names)
      : store_(store), topology_(topology), names_(names) {}

  // Publishes the address of `rank`, and introduces the ranks of other machines to its transport. Returns the group's
  // token. Collective over the group. An error names the ranks that did not come.
  Result<std::string> run(int rank, Transport& transport, Deadline deadline) const;
  // Publishes why `rank` has no address. The ranks that wait for it then fail with this reason.
  void refuse(int rank, const Status& why) const;
  // What the ranks leave in the store.
  static std::vector<std::string> keys(const std::string& group, int group_size);

 private:
  Status introduce(int rank, const std::vector<Bytes>& published, Transport& transport) const;
  Status who_did_not_publish(const Status& why) const;

  Store& store_;
  const Topology& topology_;
  const GroupNames names_;
};

}  // namespace lockstep::comm
