#include "open_transport.h"

#include <fmt/format.h>

#include <atomic>
#include <set>

#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "net/network_interface.h"
#include "net/ucx/ucx_transport.h"

namespace lockstep::comm {
namespace {

// The interface by which other machines reach this one: the one that leads to the store, which every rank has reached;
// else the one that leads to MASTER_ADDR.
NetworkInterface find_interface(const Store& store) {
  if (const std::string address = store.local_address(); !address.empty()) {
    if (auto found = interface_with_address(address); found.ok()) return found.value();
  }
  if (const auto master = Environment::of_process().get("MASTER_ADDR")) {
    auto found = interface_towards(*master);
    if (found.ok()) return found.value();
    static std::atomic<bool> said{false};  // by a group before
    if (said.exchange(true)) return {};
    log::warning(
        fmt::format("no interface towards MASTER_ADDR {}: {}; UCX chooses one", *master, found.status().message()));
  }
  return {};
}

}  // namespace

Admitted admitted_to(const Topology& topology, int rank) {
  const std::vector<std::string>& own = topology.member(rank).addresses;
  std::set<std::string> all;  // the ranks of a machine publish the same addresses
  Admitted admitted;
  for (int other = 0; other < topology.size(); ++other) {
    if (topology.machine_of(other) == topology.machine_of(rank)) continue;
    const std::vector<std::string>& its = topology.member(other).addresses;
    admitted.loopback = admitted.loopback || its == own;
    all.insert(its.begin(), its.end());
  }
  for (const std::string& address : own) {
    if (!admitted.loopback) all.erase(address);  // an address that every machine has, such as that of a bridge
  }
  admitted.addresses.assign(all.begin(), all.end());
  return admitted;
}

Result<std::unique_ptr<Transport>> open_transport(const Store& store, const Topology& topology, int rank,
                                                  ActiveMessageHandler handler) {
  return open_ucx(find_interface(store), admitted_to(topology, rank), std::move(handler));
}

}  // namespace lockstep::comm
