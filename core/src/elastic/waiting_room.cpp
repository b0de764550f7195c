#include "waiting_room.h"

#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/number_text.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/launch/newcomer.h"

namespace lockstep::elastic_detail {
namespace {

constexpr const char* kCount = "elastic/newcomers";
constexpr const char* kOver = "elastic/over";
constexpr auto kCallTime = std::chrono::seconds(10);

std::string handle_key(std::int64_t number) {
  return fmt::format("elastic/handle/{}", number);
}
std::string wish_key(std::int64_t number) {
  return fmt::format("elastic/wish/{}", number);
}
std::string invitation_key(std::int64_t number) {
  return fmt::format("elastic/invitation/{}", number);
}

// What a newcomer has that must be the same on all members. A process of another build may not tell.
std::string description_key(std::int64_t number) {
  return fmt::format("elastic/description/{}", number);
}
// In front of the reason in place of an invitation.
constexpr std::string_view kRefused = "refused: ";

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw_status(result.status(), "ElasticTraining: the store of the newcomers");
  return std::move(result).value();
}
void require(const Status& status) {
  if (!status.ok()) throw_status(status, "ElasticTraining: the store of the newcomers");
}

// The first lines in which two texts differ.
std::pair<std::string, std::string> first_difference(const std::string& one, const std::string& other) {
  std::istringstream lines(one), other_lines(other);
  std::string line = "nothing more", other_line = line;
  while (true) {
    if (!std::getline(lines, line)) line = "nothing more";
    if (!std::getline(other_lines, other_line)) other_line = "nothing more";
    if (line != other_line || (!lines && !other_lines)) return {line, other_line};
  }
}

using Fields = std::tuple<std::vector<std::string>, std::int64_t, std::vector<std::int64_t>, std::int64_t, std::int64_t,
                          std::int64_t>;

// nullopt: the training is over.
std::optional<Invitation> invitation_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text.starts_with(kRefused))
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("ElasticTraining: this newcomer cannot join: {}: give it the options and states of "
                                    "the others",
                                    text.substr(kRefused.size())));
  auto [handles, uuid, places, full_size, micro_batches, newcomers] = decode_object<Fields>(text);
  return Invitation{std::move(handles), uuid, std::move(places), full_size, micro_batches, newcomers};
}

Deadline soon() {
  return Deadline::after(kCallTime);
}

using Op = comm::StoreCall::Op;

}  // namespace

bool WaitingRoom::has(const std::string& key) {
  return value_of(store_->ask({.op = Op::kCheck, .keys = {key}, .deadline = soon()})).number != 0;
}

// Reads only: a file grows with each write, and this is asked in each step.
std::int64_t WaitingRoom::count() {
  if (!has(kCount)) return 0;
  return number_from_text<std::int64_t>(value_of(store_->get(kCount, soon()))).value_or(0);
}

// The order of its calls is the reverse of that in close(), so that one of the two notices the other.
std::optional<Invitation> WaitingRoom::wait(const std::string& handle, const std::string& description,
                                            std::int64_t wish) {
  const std::int64_t number =
      value_of(store_->ask({.op = Op::kAdd, .keys = {kCount}, .amount = 1, .deadline = soon()})).number;
  require(store_->set(description_key(number), description, soon()));
  if (wish >= 0) require(store_->set(wish_key(number), std::to_string(wish), soon()));
  require(store_->set(handle_key(number), handle, soon()));
  if (is_closed()) return std::nullopt;
  while (true) {
    auto answer = store_->get(invitation_key(number), soon());
    if (answer.status().code() != ErrorCode::kTimeout) return invitation_of(value_of(std::move(answer)));
    // The rank that closed the room may have died before it had told everybody who waits.
    const auto over = store_->ask({.op = Op::kCheck, .keys = {kOver}, .deadline = soon()});
    if (over.ok() && over.value().number != 0) return std::nullopt;
  }
}

std::vector<Waiting> WaitingRoom::waiting(std::size_t most, Deadline deadline, const std::string& description) {
  std::vector<Waiting> found;
  for (std::int64_t number = first_; found.size() < most; ++number) {
    if (number > count()) {
      const std::string next = handle_key(number);
      const Status come = store_->wait(std::array{next}, deadline);
      if (come.code() == ErrorCode::kTimeout) break;
      require(come);
    }
    if (has(invitation_key(number))) {
      if (number == first_) ++first_;
    } else if (has(handle_key(number)) &&
               !refuse(number, description)) {  // else it will tell its handle, or has died before
      found.push_back({number, value_of(store_->get(handle_key(number), soon()))});
      if (!has(wish_key(number))) continue;
      const std::string wish = value_of(store_->get(wish_key(number), soon()));
      found.back().wish = number_from_text<std::int64_t>(wish).value_or(-1);
    }
  }
  return found;
}

// Whether it was sent away, because its description is another.
bool WaitingRoom::refuse(std::int64_t number, const std::string& description) {
  if (!has(description_key(number))) return false;
  const std::string other = value_of(store_->get(description_key(number), soon()));
  if (other == description) return false;
  const auto [mine, theirs] = first_difference(description, other);
  require(store_->set(invitation_key(number),
                      fmt::format("{}the training has \"{}\", the newcomer \"{}\"", kRefused, mine, theirs), soon()));
  log::warning(fmt::format("ElasticTraining: a newcomer is refused: this training has \"{}\", the newcomer \"{}\"",
                           mine, theirs));
  return true;
}

std::int64_t WaitingRoom::leave(std::int64_t generation) {
  return value_of(store_->ask({.op = Op::kAdd,
                               .keys = {fmt::format("elastic/left/{}", generation)},
                               .amount = 1,
                               .deadline = soon()}))
      .number;
}

void WaitingRoom::invite(std::int64_t number, const Invitation& invitation) {
  const Fields fields(invitation.handles, invitation.uuid, invitation.places, invitation.full_size,
                      invitation.micro_batches, invitation.newcomers);
  require(store_->set(invitation_key(number), encode_object(fields), soon()));
}

bool WaitingRoom::is_closed() {
  return has(kOver);
}

bool WaitingRoom::nobody_comes(int rank) {
  return has(launch::nobody_comes_key(rank));
}

bool WaitingRoom::tell_joined(int rank) {
  const Status told = store_->set(launch::joined_key(rank), "1", soon());
  if (!told.ok())
    log::info("ElasticTraining: the launcher does not know that this process has joined: " + told.message());
  return told.ok();
}

void WaitingRoom::close() {
  require(store_->set(kOver, "1", soon()));
  for (std::int64_t number = 1; number <= count(); ++number) {
    static_cast<void>(value_of(store_->ask(
        {.op = Op::kCompareSet, .keys = {invitation_key(number)}, .values = {"", ""}, .deadline = soon()})));
  }
}

}  // namespace lockstep::elastic_detail
