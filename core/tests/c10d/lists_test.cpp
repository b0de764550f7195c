// Lists of tensors: several per rank in one call, as with Gloo, and tensors that share memory.
#include <gtest/gtest.h>

#include "c10d/backend/output_memory.h"
#include "c10d/ranks.h"
#include "support/both_forms.h"

namespace lockstep::test {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Tensor full(double value, int size = 5) {
  return torch::full({size}, value);
}

c10::intrusive_ptr<c10d::Backend> backend() {
  return default_group()->getBackend(torch::kCPU);
}

// Rank r has r + 1 and 10 * (r + 1). The expected results were measured with Gloo.
void check_several_tensors(int rank, int world) {
  const double ranks = world * (world + 1) / 2.0;
  for (const bool strided : {false, true}) {
    const auto make = [strided](double value) {
      return strided ? torch::full({5, 2}, value).select(1, 0) : full(value);
    };
    Tensors both{make(rank + 1), make(10 * (rank + 1))};
    backend()->allreduce(both)->wait();
    for (const torch::Tensor& one : both) expect_equal(one, full(11 * ranks), "all_reduce");

    for (const int root_tensor : {0, 1}) {
      both = {make(rank + 1), make(10 * (rank + 1))};
      c10d::BroadcastOptions options;
      options.rootRank = world - 1;
      options.rootTensor = root_tensor;
      backend()->broadcast(both, options)->wait();
      for (const torch::Tensor& one : both) expect_equal(one, full(world * (root_tensor == 0 ? 1 : 10)), "broadcast");
    }

    both = {make(rank + 1), make(10 * (rank + 1))};
    std::vector<Tensors> outputs(2);
    for (Tensors& list : outputs) {
      for (int i = 0; i < 2 * world; ++i) list.push_back(make(0));
    }
    backend()->allgather(outputs, both)->wait();
    for (const Tensors& list : outputs) {
      for (int i = 0; i < 2 * world; ++i) {
        const int from = i / 2;
        expect_equal(list[i], full((from + 1) * (i % 2 == 0 ? 1 : 10)), "all_gather");
      }
    }
  }
  Tensors means{full(rank), full(rank + 2)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  options.asyncOp = false;
  backend()->allreduce(means, options);
  expect_equal(means[1], full((ranks - world) * 2 / world + 2), "mean over the ranks of their sums");
}

// The words that people search for.
void check_words(int rank, int world) {
  const auto expect_words = [](const std::string& words, const std::function<void()>& call) {
    expect_error(ErrorCode::kInvalidArgument, {words}, call);
  };
  Tensors none;
  Tensors two{full(1), full(2)};
  Tensors mixed{full(1), torch::ones({5}, torch::kInt)};
  Tensors sizes{full(1), full(1, 4)};
  std::vector<Tensors> no_lists;
  std::vector<Tensors> two_lists{two, two};
  expect_words("requires non-empty tensor list", [&] { backend()->allreduce(none); });
  expect_words("invalid tensor type at index 1", [&] { backend()->allreduce(mixed); });
  expect_words("invalid tensor size at index 1", [&] { backend()->allreduce(sizes); });
  expect_words("requires a single-element tensor list", [&] { backend()->reduce(two); });
  expect_words("requires a single-element input tensor list", [&] { backend()->gather(no_lists, two); });
  expect_words("requires a single-element output tensor list", [&] { backend()->scatter(two, no_lists); });
  expect_words("only supports 1 output", [&] { backend()->reduce_scatter(two, two_lists); });
  expect_words("requires non-empty input tensor list", [&] { backend()->allgather(no_lists, none); });
  expect_words("requires input/output tensor lists to have the same length",
               [&] { backend()->allgather(no_lists, two); });
  expect_words("takes a single tensor", [&] { backend()->send(two, 0, 0); });
  c10d::BroadcastOptions broadcast_options;
  for (const int root : {-1, world}) {
    broadcast_options.rootRank = root;
    expect_words(c10::str("invalid root rank: ", root), [&] { backend()->broadcast(two, broadcast_options); });
  }
  broadcast_options.rootRank = 0;
  broadcast_options.rootTensor = 2;
  expect_words("invalid root tensor: 2", [&] { backend()->broadcast(two, broadcast_options); });
  Tensors one{full(1)};
  c10d::GatherOptions gather_options;
  gather_options.rootRank = rank;
  expect_words(c10::str("requires a single-element output list containing a list with ", world, " tensors"),
               [&] { backend()->gather(no_lists, one, gather_options); });
  gather_options.rootRank = (rank + 1) % world;
  if (world > 1) {
    expect_words("requires empty output on non-root", [&] { backend()->gather(two_lists, one, gather_options); });
  }
  barrier();
}

TEST(ListsMulti, SeveralTensorsOfARankAsWithGloo) {
  for (const int world : {1, 2, 3}) {
    run_world(world, [world](int rank) {
      check_several_tensors(rank, world);
      check_words(rank, world);
    });
  }
}

// Blocking and not, small and large, in the group's memory and in other memory.
struct Way {
  bool async;
  std::int64_t size;
  bool arena;

  torch::Tensor numbers(double value, std::int64_t count) const {
    if (arena) return backend()->allocateTensor(count).fill_(value);
    return torch::full({count}, value);
  }
};

void check_lists_with_common_memory(int rank, int world, const Way& way) {
  const std::int64_t n = way.size;
  const torch::Tensor twice = way.numbers(rank + 1, n);
  RUN(way, all_reduce_coalesced, {twice, twice});
  EXPECT_TRUE(torch::equal(twice, torch::full({n}, world * (world + 1) / 2.0))) << "twice in a list";

  const torch::Tensor whole = way.numbers(1, 3 * n);
  RUN(way, all_reduce_coalesced, {whole.narrow(0, 0, 2 * n), whole.narrow(0, n, 2 * n)});
  EXPECT_TRUE(torch::equal(whole, torch::full({3 * n}, static_cast<double>(world)))) << "overlapping";

  // The last output counts.
  const torch::Tensor output = way.numbers(0, n);
  RUN(way, all_gather, Tensors(world, output), way.numbers(rank, n));
  EXPECT_TRUE(torch::equal(output, torch::full({n}, world - 1.0))) << "all_gather to one tensor";

  // The second input is in the first output.
  const torch::Tensor first = way.numbers(7, n * world);
  const torch::Tensor second = way.numbers(0, n * world);
  RUN(way, all_gather_into_tensor_coalesced, {first, second}, {way.numbers(rank, n), first.narrow(0, 0, n)});
  EXPECT_TRUE(torch::equal(second, torch::full({n * world}, 7.0))) << "read before it was written";
}

void check_calls_in_place(int rank, int world, const Way& way) {
  const std::int64_t n = way.size;
  // Each part of rank r holds 10 r + (number of the part).
  const auto parts = [&] {
    const torch::Tensor all = way.numbers(0, n * world);
    for (int part = 0; part < world; ++part) all.narrow(0, part * n, n).fill_(10 * rank + part);
    return all;
  };
  torch::Tensor all = parts();
  RUN(way, all_to_all_single, all, all);
  for (int part = 0; part < world; ++part) {
    EXPECT_TRUE(torch::equal(all.narrow(0, part * n, n), torch::full({n}, 10.0 * part + rank))) << "all_to_all_single";
  }
  // The output is another rank's part of the input, and this rank's own part.
  for (const int own : {rank, (rank + 1) % world}) {
    all = parts();
    const torch::Tensor result = all.narrow(0, own * n, n);
    RUN(way, reduce_scatter_tensor, result, all);
    const double sum = 10.0 * world * (world - 1) / 2 + rank * world;
    EXPECT_TRUE(torch::equal(result, torch::full({n}, sum))) << "reduce_scatter_tensor into part " << own;
    all = parts();
    RUN(way, all_gather_into_tensor, all, all.narrow(0, own * n, n));
    for (int part = 0; part < world; ++part) {
      const double expected = 10.0 * part + (own == rank ? part : (part + 1) % world);
      EXPECT_TRUE(torch::equal(all.narrow(0, part * n, n), torch::full({n}, expected))) << "all_gather_into_tensor";
    }
  }
  // On the root, the input of a gather is another rank's output; the output of a scatter is another rank's input.
  all = parts();
  Tensors list;
  for (int part = 0; part < world; ++part) list.push_back(all.narrow(0, part * n, n));
  RUN(way, gather, list[(rank + 1) % world], rank == 0 ? list : Tensors(), 0);
  for (int part = 0; part < world && rank == 0; ++part) {
    EXPECT_TRUE(torch::equal(list[part], torch::full({n}, 10.0 * part + (part + 1) % world))) << "gather";
  }
  all = parts();
  const torch::Tensor share = rank == 0 ? all.narrow(0, (world - 1) * n, n) : way.numbers(0, n);
  list.clear();
  for (int part = 0; part < world; ++part) list.push_back(all.narrow(0, part * n, n));
  RUN(way, scatter, share, rank == 0 ? list : Tensors(), 0);
  EXPECT_TRUE(torch::equal(share, torch::full({n}, static_cast<double>(rank)))) << "scatter";
}

TEST(ListsMulti, TensorsThatShareMemoryAreReadBeforeTheyAreWritten) {
  for (const int world : {2, 3}) {
    run_world(world, [world](int rank) {
      torch::set_num_threads(1);
      for (const bool async : {false, true}) {
        for (const std::int64_t size : {3, 30'000}) {
          for (const bool arena : {false, true}) {
            SCOPED_TRACE(
                c10::str("rank ", rank, " of ", world, ", ", size, async ? ", async" : "", arena ? ", arena" : ""));
            check_lists_with_common_memory(rank, world, {async, size, arena});
            check_calls_in_place(rank, world, {async, size, arena});
          }
        }
      }
      barrier();
    });
  }
}

// Ranks whose lists differ in length have made different numbers of collectives: no later result could be right.
TEST(ListsMulti, OfDifferentLengthsEndTheGroup) {
  for (const bool async : {false, true}) {
    run_world(3, [async](int rank) {
      Tensors tensors{full(1), full(2)};
      if (rank == 1) tensors.push_back(full(3));
      const auto call = [&] {
        async ? static_cast<void>(all_reduce_coalesced_async(tensors)->wait()) : all_reduce_coalesced(tensors);
      };
      expect_error(ErrorCode::kMismatch, {"rank(s) 1 called all_reduce of 5 float32 (sum) in a list of 3"}, call);
      expect_error(ErrorCode::kMismatch, {"in a list of 2"}, [] { barrier(); });
    });
  }
}

TEST(ListsMulti, EmptyListsAreToldToAll) {
  run_world(2, [](int rank) {
    const Tensors tensors = rank == 0 ? Tensors{full(1)} : Tensors();
    expect_error(rank == 0 ? ErrorCode::kMismatch : ErrorCode::kInvalidArgument, {"requires non-empty tensor list"},
                 [&] { all_reduce_coalesced(tensors); });
    barrier();
  });
}

TEST(OutputMemory, FindsWhatOverlaps) {
  const torch::Tensor all = torch::zeros({100}, torch::kByte);
  const auto part = [&](std::int64_t from, std::int64_t to) { return all.slice(0, from, to); };
  OutputMemory memory;
  EXPECT_TRUE(memory.add(part(20, 30)));
  EXPECT_TRUE(memory.add(part(40, 50)));
  EXPECT_TRUE(memory.add(part(30, 40))) << "side by side";
  EXPECT_TRUE(memory.add(part(25, 25))) << "empty";
  EXPECT_FALSE(memory.overlaps(part(10, 20), nullptr, 0));
  EXPECT_FALSE(memory.overlaps(part(50, 60), nullptr, 0));
  EXPECT_TRUE(memory.overlaps(part(10, 21), nullptr, 0));
  EXPECT_TRUE(memory.overlaps(part(49, 60), nullptr, 0));
  EXPECT_TRUE(memory.overlaps(part(0, 100), nullptr, 0));
  EXPECT_FALSE(memory.overlaps(part(15, 30), part(20, 30).data_ptr(), 10)) << "but for that part";
  EXPECT_TRUE(memory.overlaps(part(15, 31), part(20, 30).data_ptr(), 10));
  EXPECT_FALSE(memory.add(part(0, 100)));
  EXPECT_FALSE(memory.add(part(99, 100)));
  EXPECT_FALSE(memory.overlaps(torch::zeros({9}), nullptr, 0));
  EXPECT_TRUE(memory.overlaps(all.view({10, 10}).select(1, 9), nullptr, 0));
}

}  // namespace
}  // namespace lockstep::test
