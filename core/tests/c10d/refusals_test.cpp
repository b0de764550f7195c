// Calls that are wrong on some ranks only: every rank gets an error at once, and the group stays usable. No rank waits
// for one that could not take part.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "c10d/ranks.h"
#include "support/both_forms.h"

namespace lockstep::test {
namespace {

using Tensors = std::vector<torch::Tensor>;

// The correct arguments, which each case changes.
struct At {
  int rank;
  int world;
  bool async;
  torch::Tensor good = torch::ones({4});
  torch::Tensor expanded = torch::ones({1}).expand({4});
  torch::Tensor sparse = torch::ones({4}).to_sparse();
  torch::Tensor integers = torch::ones({4}, torch::kInt);

  Tensors list(const torch::Tensor& like, int count) const {
    Tensors tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(like.layout() == torch::kStrided ? like.clone() : like);
    return tensors;
  }
  Tensors list(const torch::Tensor& like) const { return list(like, world); }
  bool first() const { return rank == 0; }
};

struct RefusalCase {
  const char* name;
  std::function<bool(const At&)> is_wrong;
  std::function<void(const At&)> call;
  ErrorCode code = ErrorCode::kInvalidArgument;  // on the ranks whose call is wrong
};

bool on_root(const At& at) {
  return at.first();
}
bool off_root(const At& at) {
  return !at.first();
}
bool on_all(const At&) {
  return true;
}

std::vector<RefusalCase> rooted_cases() {
  const auto broadcast_of = [](auto choose) { return [choose](const At& at) { RUN(at, broadcast, choose(at), 0); }; };
  const auto gather_of = [](auto outputs) {
    return [outputs](const At& at) { RUN(at, gather, at.good, at.first() ? outputs(at) : Tensors(), 0); };
  };
  const auto scatter_of = [](auto inputs) {
    return [inputs](const At& at) { RUN(at, scatter, at.good, at.first() ? inputs(at) : Tensors(), 0); };
  };
  return {
      {"broadcast of an expanded tensor", off_root, broadcast_of([](const At& at) { return at.expanded; })},
      {"broadcast of a sparse tensor", on_root,
       broadcast_of([](const At& at) { return at.first() ? at.sparse : at.good; })},
      {"broadcast into a sparse tensor", off_root,
       broadcast_of([](const At& at) { return at.first() ? at.good : at.sparse; })},
      {"broadcast of no tensor", on_root,
       broadcast_of([](const At& at) { return at.first() ? torch::Tensor() : at.good; })},
      {"broadcast into a ZeroTensor", off_root,
       broadcast_of([](const At& at) { return at.first() ? at.good : at::_efficientzerotensor({4}); })},
      {"broadcast on another device", on_root,
       broadcast_of([](const At& at) { return at.first() ? at.good.to(torch::kMeta) : at.good; }),
       ErrorCode::kUnsupported},
      {"broadcast from nobody", off_root, [](const At& at) { RUN(at, broadcast, at.good, at.first() ? 0 : 7); }},
      {"reduce of an expanded tensor", on_root, [](const At& at) { RUN(at, reduce, at.expanded, 0); }},
      {"reduce of a sparse tensor", off_root,
       [](const At& at) { RUN(at, reduce, at.first() ? at.good : at.sparse, 0); }},
      {"reduce without arithmetic", on_root,
       [](const At& at) { RUN(at, reduce, at.first() ? at.good.to(at::kFloat8_e4m3fn) : at.good, 0); }},
      {"reduce by no reduction", on_root,
       [](const At& at) { RUN(at, reduce, at.integers, 0, {.op = at.first() ? premul_sum(2) : c10d::ReduceOp()}); }},
      {"gather to nowhere", on_root, gather_of([](const At&) { return Tensors(); })},
      {"gather to too few", on_root, gather_of([](const At& at) { return at.list(at.good, at.world - 1); })},
      {"gather to too many", on_root, gather_of([](const At& at) { return at.list(at.good, at.world + 1); })},
      {"gather to another dtype", on_root, gather_of([](const At& at) { return at.list(at.integers); })},
      {"gather to another size", on_root, gather_of([](const At& at) { return at.list(torch::ones({5})); })},
      {"gather to expanded tensors", on_root, gather_of([](const At& at) { return Tensors(at.world, at.expanded); })},
      {"gather to sparse tensors", on_root, gather_of([](const At& at) { return at.list(at.sparse); })},
      {"gather to another device", on_root, gather_of([](const At& at) { return at.list(at.good.to(torch::kMeta)); })},
      {"gather to a rank that is not the root", off_root,
       [](const At& at) { RUN(at, gather, at.good, at.list(at.good), 0); }},
      {"scatter from nowhere", on_root, scatter_of([](const At&) { return Tensors(); })},
      {"scatter from too few", on_root, scatter_of([](const At& at) { return at.list(at.good, at.world - 1); })},
      {"scatter from another dtype", on_root, scatter_of([](const At& at) { return at.list(at.integers); })},
      {"scatter from another size", on_root, scatter_of([](const At& at) { return at.list(torch::ones({5})); })},
      {"scatter from sparse tensors", on_root, scatter_of([](const At& at) { return at.list(at.sparse); })},
      {"scatter from a rank that is not the root", off_root,
       [](const At& at) { RUN(at, scatter, at.good, at.list(at.good), 0); }},
      {"scatter into an expanded tensor", off_root,
       [](const At& at) {
         RUN(at, scatter, at.first() ? at.good : at.expanded, at.first() ? at.list(at.good) : Tensors(), 0);
       }},
  };
}

// Operations without a root: only some ranks get wrong arguments.
std::vector<RefusalCase> other_cases() {
  return {
      {"all_reduce of expanded tensors", on_all, [](const At& at) { RUN(at, all_reduce, at.expanded); }},
      {"all_reduce without arithmetic", on_root,
       [](const At& at) { RUN(at, all_reduce, at.first() ? at.good.to(at::kFloat8_e4m3fn) : at.good); }},
      {"all_reduce of a sparse tensor by MAX", on_root,
       [](const At& at) { RUN(at, all_reduce, at.first() ? at.sparse : at.good, {.op = c10d::ReduceOp::MAX}); }},
      {"all_reduce without time", off_root,
       [](const At& at) {
         RUN(at, all_reduce, at.good, {.timeout = at.first() ? kGroupTimeout : std::chrono::milliseconds(0)});
       }},
      {"all_reduce_coalesced of a sparse tensor", off_root,
       [](const At& at) {
         RUN(at, all_reduce_coalesced, {at.good, at.first() ? at.good.clone() : at.sparse, at.integers});
       }},
      {"all_gather to too few", on_root,
       [](const At& at) { RUN(at, all_gather, at.list(at.good, at.first() ? at.world - 1 : at.world), at.good); }},
      {"all_gather to another dtype", off_root,
       [](const At& at) { RUN(at, all_gather, at.list(at.first() ? at.good : at.integers), at.good); }},
      {"all_gather_into_tensor of another size", on_root,
       [](const At& at) {
         RUN(at, all_gather_into_tensor, torch::ones({4 * at.world + (at.first() ? 1 : 0)}), at.good);
       }},
      {"all_gather_coalesced to one too few", on_root,
       [](const At& at) {
         std::vector<Tensors> outputs(at.world);
         for (Tensors& list : outputs) list = at.list(at.good, at.first() ? 1 : 2);
         RUN(at, all_gather_coalesced, outputs, at.list(at.good, 2));
       }},
      {"reduce_scatter from too few", off_root,
       [](const At& at) { RUN(at, reduce_scatter, at.good, at.list(at.good, at.first() ? at.world : at.world - 1)); }},
      {"reduce_scatter_tensor into an expanded tensor", on_root,
       [](const At& at) {
         RUN(at, reduce_scatter_tensor, at.first() ? at.expanded : at.good, torch::ones({4 * at.world}));
       }},
      {"all_to_all of another dtype", on_root,
       [](const At& at) { RUN(at, all_to_all, at.list(at.first() ? at.integers : at.good), at.list(at.good)); }},
      {"all_to_all_single that does not divide", on_root,
       [](const At& at) {
         const torch::Tensor input = torch::ones({4 * at.world + (at.first() ? 1 : 0)});
         RUN(at, all_to_all_single, torch::ones({4 * at.world}), input);
       }},
      {"barrier without time", on_root,
       [](const At& at) { RUN(at, barrier, {.timeout = at.first() ? std::chrono::milliseconds(-7) : kGroupTimeout}); }},
  };
}

void expect_usable(int world, const std::string& after) {
  const torch::Tensor tensor = torch::ones({100});
  all_reduce(tensor);
  EXPECT_EQ(tensor[99].item<float>(), static_cast<float>(world)) << after;
}

void check(const RefusalCase& refusal, const At& at) {
  const std::string what = c10::str(refusal.name, at.async ? ", async" : "", ", rank ", at.rank, " of ", at.world);
  SCOPED_TRACE(what);
  if (refusal.is_wrong(at)) {
    expect_error(refusal.code, {}, [&] { refusal.call(at); });
  } else {
    expect_error(ErrorCode::kMismatch, {"rank(s) ", "could not take part: "}, [&] { refusal.call(at); });
  }
  expect_usable(at.world, what);
}

TEST(RefusalsMulti, EveryRankIsToldAtOnce) {
  for (const int world : {2, 3}) {
    run_world(world, [world](int rank) {
      for (const bool async : {false, true}) {
        for (const auto& cases : {rooted_cases(), other_cases()}) {
          for (const RefusalCase& refusal : cases) check(refusal, {rank, world, async});
        }
      }
    });
  }
}

// Every rank whose call is right gets the same text.
TEST(RefusalsMulti, NameTheRankAndItsReason) {
  run_world(3, [](int rank) {
    const torch::Tensor tensor = rank == 1 ? torch::ones({1}).expand({4}) : torch::ones({4});
    const auto call = [&] { broadcast(tensor, 0); };
    if (rank == 1) {
      expect_error(ErrorCode::kInvalidArgument, {"rank 1, group 'world', broadcast", "share memory"}, call);
    } else {
      expect_error(ErrorCode::kMismatch,
                   {"rank(s) 0, 2 called broadcast of 16 bytes of float32 from rank 0",
                    "rank(s) 1 could not take part: broadcast: `tensor` receives data, but several of its elements"},
                   call);
    }
    // Not on a rank that only reads it.
    const torch::Tensor told = rank == 0 ? torch::full({1}, 5.0F).expand({4}) : torch::ones({4});
    broadcast(told, 0);
    EXPECT_TRUE(torch::equal(told, torch::full({4}, 5.0F)));
  });
}

}  // namespace
}  // namespace lockstep::test
