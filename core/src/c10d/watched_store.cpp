#include "c10d/watched_store.h"

#include <chrono>
#include <utility>

namespace lockstep {
namespace {

using comm::Bytes;

constexpr auto kLookEvery = std::chrono::milliseconds(200);

class WatchedStore final : public comm::Store {
 public:
  WatchedStore(std::shared_ptr<comm::Store> inner, std::function<Status()> look)
      : inner_(std::move(inner)), look_(std::move(look)) {}

  Status wait(std::span<const std::string> keys, Deadline deadline) override {
    return attend(keys, deadline, [&](Deadline until) { return inner_->wait(keys, until); });
  }
  Result<Bytes> get(std::string_view key, Deadline deadline) override {
    const std::vector<std::string> keys{std::string(key)};
    return attend(keys, deadline, [&](Deadline until) { return inner_->get(key, until); });
  }
  Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Deadline deadline) override {
    return attend(keys, deadline, [&](Deadline until) { return inner_->multi_get(keys, until); });
  }
  Result<bool> check(std::span<const std::string> keys) override { return inner_->check(keys); }
  Status set(std::string_view key, std::string_view value) override { return inner_->set(key, value); }
  Status set_by(std::string_view key, std::string_view value, Deadline deadline) override {
    return inner_->set_by(key, value, deadline);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override { return inner_->add(key, amount); }
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    return inner_->compare_set(key, expected, desired);
  }
  Status append(std::string_view key, std::string_view value) override { return inner_->append(key, value); }
  Result<bool> delete_key(std::string_view key) override { return inner_->delete_key(key); }
  Result<std::int64_t> num_keys() override { return inner_->num_keys(); }
  std::string local_address() const override { return inner_->local_address(); }
  Status multi_set(std::span<const std::string> keys, std::span<const Bytes> values) override {
    return inner_->multi_set(keys, values);
  }

 private:
  static const Status& status_of(const Status& status) { return status; }
  template <typename T>
  static const Status& status_of(const Result<T>& result) {
    return result.status();
  }
  // Repeats a wait for `keys`, and looks at the ranks in between. What a rank had set before it ended is there when its
  // end is seen.
  template <typename Wait>
  auto attend(std::span<const std::string> keys, Deadline deadline, const Wait& wait) -> decltype(wait(deadline)) {
    while (true) {
      auto waited = wait(earlier(deadline, Deadline::after(kLookEvery)));
      if (status_of(waited).code() != ErrorCode::kTimeout) return waited;
      const Status present = look_();
      if (!present.ok()) {
        LOCKSTEP_ASSIGN_OR_RETURN(const bool there, inner_->check(keys));
        if (!there) return present;
      } else if (deadline.expired()) {
        return waited;
      }
    }
  }

  const std::shared_ptr<comm::Store> inner_;
  const std::function<Status()> look_;
};

}  // namespace

std::shared_ptr<comm::Store> make_watched_store(std::shared_ptr<comm::Store> store, std::function<Status()> look) {
  return std::make_shared<WatchedStore>(std::move(store), std::move(look));
}

}  // namespace lockstep
