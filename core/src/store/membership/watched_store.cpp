#include "store/membership/watched_store.h"

#include <chrono>
#include <utility>

namespace lockstep::comm {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(200);

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> inner, std::function<Status()> look)
      : inner_(std::move(inner)), look_(std::move(look)) {}

  std::string local_address() const override { return inner_->local_address(); }

 private:
  // Repeats a wait for keys, and looks at the ranks in between. What a rank had set before it ended is there when its
  // end is seen.
  Result<StoreAnswer> answer(StoreCall call) override {
    if (!call.waits()) return inner_->ask(std::move(call));
    while (true) {
      StoreCall part = call;
      part.deadline = earlier(call.deadline, Deadline::after(kLookEvery));
      auto waited = inner_->ask(std::move(part));
      if (waited.status().code() != ErrorCode::kTimeout) return waited;
      const Status present = look_();
      if (!present.ok()) {
        LOCKSTEP_ASSIGN_OR_RETURN(const bool there, inner_->check(call.keys));
        if (!there) return present;
      } else if (call.deadline.expired()) {
        return waited;
      }
    }
  }

  const std::shared_ptr<Store> inner_;
  const std::function<Status()> look_;
};

}  // namespace

std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<Status()> look) {
  return std::make_shared<WatchedStore>(std::move(store), std::move(look));
}

}  // namespace lockstep::comm
