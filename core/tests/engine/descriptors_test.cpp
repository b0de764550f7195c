// Groups that form while one of the ranks may open only a few descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "lockstep/engine/communicator.h"
#include "lockstep/store/rendezvous.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kWorld = 3;
constexpr int kEnough = 40;  // more descriptors than forming this group takes

// While this object exists, the process may open only this many descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    now.rlim_cur = 0;
    while (count >= 0) {
      if (fcntl(static_cast<int>(now.rlim_cur), F_GETFD) < 0) --count;
      if (count >= 0) ++now.rlim_cur;
    }
    limit_ = static_cast<int>(now.rlim_cur);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  int limit() const { return limit_; }

 private:
  rlimit before_{};
  int limit_ = 0;
};

struct Meeting {
  std::shared_ptr<Store> store;
  int rank;
  std::shared_ptr<SharedArena> arena;

  Status form(const std::string& name) const {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = kWorld;
    options.name = name;
    options.timeout = 30s;
    options.arena = arena;
    const auto group = Communicator::create(store, options);
    if (!group.ok()) return group.status();
    int value = 1;
    return group.value()->run(AllReduce{&value, &value, 1}, Deadline::after(30s));
  }
};

// The key under which every rank writes its result of this round.
std::vector<Bytes> exchange(const Meeting& me, const std::string& round, const std::string& word) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < kWorld; ++rank) keys.push_back(round + "/said/" + std::to_string(rank));
  EXPECT_TRUE(me.store->set(keys[me.rank], word).ok());
  return me.store->multi_get(keys, Deadline::after(40s)).value();
}

// Each rank in turn has 0, 1, 2, ... free descriptors, until the group forms.
TEST(DescriptorsFault, NoneLeftWhileAGroupFormsIsAnErrorOnEveryRank) {
  test::run_processes(kWorld, [](int rank) {
    auto met = rendezvous(RendezvousOptions()).value();
    SharedArenaOptions small;
    small.first_segment = std::size_t{1} << 20;
    const Meeting me{met.store, rank, SharedArena::create(small).value()};
    ASSERT_TRUE(me.form("first").ok());
    const std::set<int> before = test::Leftovers::now().descriptors;
    for (int victim = 0; victim < kWorld; ++victim) {
      int refused = 0;
      for (bool formed = false; !formed; ++refused) {
        ASSERT_LT(refused, kEnough);
        const std::string name = "victim " + std::to_string(victim) + " with " + std::to_string(refused);
        std::optional<FewDescriptors> few;
        if (rank == victim) few.emplace(refused);
        const std::string limit = few ? std::to_string(few->limit()) : "";
        const Status status = me.form(name);
        few.reset();
        EXPECT_EQ(test::Leftovers::now().descriptors, before) << name;
        const std::string the_limit = exchange(me, name + "/limit", limit)[victim];
        const std::vector<Bytes> said = exchange(me, name, status.ok() ? "formed" : "refused");
        formed = said[0] == "formed";
        for (const Bytes& word : said) ASSERT_EQ(word, said[0]) << name << ": " << status.message();
        if (formed) continue;
        for (const std::string& part : {"rank " + std::to_string(victim), std::string("Too many open files"),
                                        "may have " + the_limit + " descriptors"})
          EXPECT_NE(status.message().find(part), std::string::npos) << name << ": " << status.message();
      }
      EXPECT_GT(refused, kWorld);
      EXPECT_TRUE(me.form("after victim " + std::to_string(victim)).ok());
    }
    (void)met.release(2s);
  });
}

}  // namespace
}  // namespace lockstep::comm
