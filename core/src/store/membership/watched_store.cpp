#include "store/membership/watched_store.h"

#include <utility>

namespace lockstep::comm {
namespace {

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> inner, std::function<Status()> look, WatchOptions options)
      : inner_(std::move(inner)), look_(std::move(look)), options_(std::move(options)) {}

  std::string local_address() const override { return inner_->local_address(); }

 private:
  Result<StoreAnswer> answer(StoreCall call) override {
    auto answered = call.waits() ? await(call) : inner_->ask(std::move(call));
    if (answered.status().code() != ErrorCode::kUnavailable || !options_.lost) return answered;
    return options_.lost(answered.status());
  }

  // Repeats a wait for keys, and looks at the ranks in between. What a rank had set before it ended is there when its
  // end is seen.
  Result<StoreAnswer> await(const StoreCall& call) {
    while (true) {
      StoreCall part = call;
      part.deadline = earlier(call.deadline, Deadline::after(options_.every));
      if (options_.alarm) part.unless = options_.alarm();
      auto waited = inner_->ask(std::move(part));
      const ErrorCode code = waited.status().code();
      if (code != ErrorCode::kTimeout && (code != ErrorCode::kAborted || !options_.alarm)) return waited;
      const Status present = look_();
      if (!present.ok()) {
        const auto there = inner_->check(call.keys);
        if (!there.ok() || !there.value()) return present;
      } else if (code == ErrorCode::kTimeout && call.deadline.expired()) {
        return waited;
      }
    }
  }

  const std::shared_ptr<Store> inner_;
  const std::function<Status()> look_;
  const WatchOptions options_;
};

}  // namespace

std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store, std::function<Status()> look,
                                          WatchOptions options) {
  return std::make_shared<WatchedStore>(std::move(store), std::move(look), std::move(options));
}

}  // namespace lockstep::comm
