#include "address_exchange.h"

#include <fmt/format.h>

#include <span>

#include "base/random.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kTokenBytes = 16;
const std::string kRefusal = "refused ";
constexpr auto kAddressGrace = std::chrono::seconds(2);

std::string address_key(const std::string& group, int rank) {
  return fmt::format("lockstep/{}/address/{}", group, rank);
}

// Why a rank has no address, if this was published in its place.
Status refusal_in(const Bytes& published) {
  if (!published.starts_with(kRefusal)) return {};
  return status_from(std::string_view(published).substr(kRefusal.size()));
}

Result<std::string> random_token() {
  std::string token(kTokenBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(token))));
  return token;
}

}  // namespace

std::vector<std::string> AddressExchange::keys(const std::string& group, int group_size) {
  std::vector<std::string> keys;
  keys.reserve(group_size);
  for (int rank = 0; rank < group_size; ++rank) keys.push_back(address_key(group, rank));
  return keys;
}

void AddressExchange::refuse(int rank, const Status& why) const {
  (void)store_.set(address_key(names_.group, rank), kRefusal + to_text(why));
}

Result<std::string> AddressExchange::run(int rank, Transport& transport, Deadline deadline) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string token, random_token());
  const std::string address = transport.address();
  if (address.empty()) return Status(ErrorCode::kUnavailable, transport.describe() + " has no address for others");
  LOCKSTEP_RETURN_IF_ERROR(store_.set(address_key(names_.group, rank), token + address));
  // A little longer than the ranks of another machine wait for one another, because they know who is missing there.
  auto all =
      store_.multi_get(keys(names_.group, topology_.size()), Deadline::after(deadline.remaining() + kAddressGrace));
  if (all.status().code() == ErrorCode::kTimeout) return who_did_not_publish(all.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Bytes> published, std::move(all));
  LOCKSTEP_RETURN_IF_ERROR(introduce(rank, published, transport));
  return published[0].substr(0, kTokenBytes);
}

Status AddressExchange::introduce(int rank, const std::vector<Bytes>& published, Transport& transport) const {
  for (int other = 0; other < topology_.size(); ++other) {
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published[other]).with_context(names_.ranks.name(other)));
    if (published[other].size() <= kTokenBytes) {
      return {ErrorCode::kCorrupt, fmt::format("what {} published is no address", names_.ranks.name(other))};
    }
    if (topology_.machine_of(other) != topology_.machine_of(rank))
      transport.introduce(other, published[other].substr(kTokenBytes));
  }
  return {};
}

Status AddressExchange::who_did_not_publish(const Status& why) const {
  std::vector<int> silent;
  for (int rank = 0; rank < topology_.size(); ++rank) {
    const std::array<std::string, 1> key{address_key(names_.group, rank)};
    const auto there = store_.check(key);
    if (!there.ok()) return why;
    if (!there.value()) {
      silent.push_back(rank);
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes published, store_.get(key[0], Deadline::after(kAddressGrace)));
    LOCKSTEP_RETURN_IF_ERROR(refusal_in(published).with_context(names_.ranks.name(rank)));
  }
  if (silent.empty()) return why;
  return {why.code(),
          fmt::format("{} did not say where to reach them", ranks_with_hosts(topology_, names_.ranks, silent))};
}

}  // namespace lockstep::comm
