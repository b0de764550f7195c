// Cases that collectives_test.cpp leaves out: reductions other than SUM in operations other than all_reduce, more
// dtypes, the order of messages, and wrong calls of each operation.
#include <gtest/gtest.h>

#include "c10d/backend/tensor_rules.h"
#include "c10d/cases.h"
#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

using Op = c10d::ReduceOp;

constexpr int kWorld = 3;

// torch computes in one thread, since there are more ranks than cores.
void run_ranks(int world, const std::function<void(int rank)>& fn) {
  run_world(world, [&fn](int rank) {
    torch::set_num_threads(1);
    fn(rank);
  });
}

void expect_near(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, /*rtol=*/1e-2)) << what;
}

// reduce to the last rank, and both forms of reduce_scatter, where rank r's slice for rank s is values_of(r + s).
void check_reductions(const Case& c, const Op& op, double factor, const std::string& what) {
  const auto inputs = values_of_all(c);
  const torch::Tensor tensor = make_like(c, inputs[c.rank]);
  reduce(tensor, kWorld - 1, {.op = op});
  expect_near(tensor, c.rank == kWorld - 1 ? reduce_locally(inputs, op.op_, factor) : inputs[c.rank], "reduce " + what);

  std::vector<torch::Tensor> mine;
  std::vector<torch::Tensor> for_me;
  for (int rank = 0; rank < kWorld; ++rank) {
    mine.push_back(make_like(c, values_of(c.dtype, c.size, c.rank + rank)));
    for_me.push_back(values_of(c.dtype, c.size, rank + c.rank));
  }
  const torch::Tensor expected = reduce_locally(for_me, op.op_, factor);
  const torch::Tensor output = make_zeros(c, c.size);
  reduce_scatter(output, mine, {.op = op});
  expect_near(output, expected, "reduce_scatter " + what);
  reduce_scatter_tensor(output.zero_(), torch::cat(mine), {.op = op});
  expect_near(output, expected, "reduce_scatter_tensor " + what);
  all_reduce(tensor.copy_(inputs[c.rank]), {.op = op});
  expect_near(tensor, reduce_locally(inputs, op.op_, factor), "all_reduce " + what);
}

TEST(OperationsMulti, ReduceBySeveralMeansInSeveralDtypes) {
  run_ranks(kWorld, [](int rank) {
    for (const auto dtype : {torch::kHalf, torch::kBFloat16, torch::kComplexFloat, torch::kComplexDouble}) {
      for (const std::int64_t size : {5, 40'000}) {
        for (const Op& op : {Op(Op::AVG), Op(Op::MIN), premul_sum(0.5)}) {
          const std::string what =
              c10::str("by ", static_cast<int>(op.op_), " of ", size, " x ", c10::toString(dtype), ", rank ", rank);
          const Case c{dtype, size, size == 5 ? Memory::kPlain : Memory::kArena, false, rank, kWorld};
          if (comm::is_supported(data_type(dtype), static_cast<comm::ReduceOp>(op.op_))) {
            check_reductions(c, op, 0.5, what);
          } else {
            expect_error(ErrorCode::kInvalidArgument, {"reduce_scatter_tensor", "is not defined for"},
                         [&] { reduce_scatter_tensor(make_zeros(c, size), make_zeros(c, size * kWorld), {.op = op}); });
          }
        }
      }
    }
    expect_error(ErrorCode::kInvalidArgument, {"reduce", "is not defined for", "Int"},
                 [] { reduce(torch::ones({3}, torch::kInt), 0, {.op = premul_sum(0.5)}); });
    barrier();
  });
}

TEST(OperationsMulti, MoveFurtherDtypes) {
  run_ranks(kWorld, [](int rank) {
    const int next = (rank + 1) % kWorld;
    const int previous = (rank + kWorld - 1) % kWorld;
    for (const auto dtype : {torch::kChar, torch::kHalf, torch::kDouble}) {
      for (const std::int64_t size : {7, 70'000}) {
        const std::string what = c10::str(size, " x ", c10::toString(dtype));
        const Case c{dtype, size, Memory::kPlain, false, rank, kWorld};
        const auto inputs = values_of_all(c);
        const torch::Tensor tensor = inputs[rank].clone();
        broadcast(tensor, 1);
        expect_equal(tensor, inputs[1], "broadcast " + what);
        const torch::Tensor all = torch::empty({kWorld * size}, dtype);
        all_gather_into_tensor(all, inputs[rank]);
        expect_equal(all, torch::cat(inputs), "all_gather_into_tensor " + what);
        const torch::Tensor swapped = torch::empty_like(all);
        all_to_all_single(swapped, all);
        expect_equal(swapped, inputs[rank].repeat({kWorld}), "all_to_all_single " + what);
        const Work sent = isend(inputs[rank], next);
        recv(tensor, previous);
        sent->wait();
        expect_equal(tensor, inputs[previous], "recv " + what);
      }
    }
  });
}

// The shape of the output says which: [ranks * rows, ...] or [ranks, rows, ...], whatever its strides.
TEST(OperationsMulti, GatherIntoATensorConcatenatesOrStacks) {
  run_ranks(kWorld, [](int rank) {
    std::vector<torch::Tensor> inputs;
    for (int r = 0; r < kWorld; ++r) inputs.push_back(torch::arange(6).reshape({2, 3}) + 10 * r);
    const torch::Tensor joined = torch::empty({2 * kWorld, 3}, torch::kLong);
    const torch::Tensor stacked = torch::empty({kWorld, 2, 3}, torch::kLong);
    const torch::Tensor strided = torch::empty({3, 2, kWorld}, torch::kLong).permute({2, 1, 0});
    for (const torch::Tensor& output : {joined, stacked, strided}) {
      const torch::Tensor expected = output.dim() == 2 ? torch::cat(inputs) : torch::stack(inputs);
      all_gather_into_tensor(output, inputs[rank]);
      expect_equal(output, expected, "all_gather_into_tensor");
      output.zero_();
      all_gather_into_tensor_async(output, inputs[rank])->wait();
      expect_equal(output, expected, "all_gather_into_tensor_async");
    }
    all_gather_into_tensor_coalesced({joined.zero_(), stacked.zero_()}, {inputs[rank], inputs[rank]});
    expect_equal(joined, torch::cat(inputs), "coalesced, joined");
    expect_equal(stacked, torch::stack(inputs), "coalesced, stacked");
    const torch::Tensor numbers = torch::empty({kWorld}, torch::kInt);
    all_gather_into_tensor(numbers, torch::tensor(rank, torch::kInt));
    expect_equal(numbers, torch::arange(kWorld, torch::kInt), "of scalars");
  });
}

// From a neighbour on this machine and, if there are several machines, from one on another.
TEST(OperationsMulti, MessagesKeepTheirOrderAndSizes) {
  run_ranks(kWorld, [](int rank) {
    constexpr int kMessages = 40;
    const auto size_of = [](int i) { return i % 4 == 3 ? 50'000 : 10 + i; };
    if (rank != 0) {
      for (int i = 0; i < kMessages; ++i) send(torch::full({size_of(i)}, 100 * rank + i), 0, {.tag = i % 2});
      send(torch::ones({3}), 0, {.tag = 7});
      send(torch::full({4}, rank), 0, {.tag = 7});
      return barrier();
    }
    for (const int source : {2, 1}) {
      for (const int tag : {1, 0}) {  // not in the order of sending
        for (int i = tag; i < kMessages; i += 2) {
          const torch::Tensor message = torch::empty({size_of(i)}, torch::kLong);
          EXPECT_EQ(recv(message, source, {.tag = tag}), source);
          expect_equal(message, torch::full({size_of(i)}, 100 * source + i), "message");
        }
      }
      const torch::Tensor message = torch::zeros({4}, torch::kLong);
      expect_error(ErrorCode::kMismatch, {"recv", "12", "32"}, [&] { recv(message, source, {.tag = 7}); });
      recv(message, source, {.tag = 7});
      expect_equal(message, torch::full({4}, source), "after one of the wrong size");
    }
    barrier();
  });
}

TEST(OperationsMulti, OutputsWhoseElementsShareMemoryAreRefused) {
  run_ranks(2, [](int rank) {
    const torch::Tensor shared = torch::ones({1}).expand({4});
    const torch::Tensor good = torch::ones({4});
    const torch::Tensor half = torch::ones({2});
    const auto expect_refused = [](const char* operation, const std::function<void()>& call) {
      expect_error(ErrorCode::kInvalidArgument, {operation, "share memory", "clone"}, call);
    };
    expect_refused("reduce", [&] { reduce(shared, rank); });
    expect_refused("all_gather", [&] { all_gather({good, shared}, good); });
    expect_refused("all_gather_into_tensor", [&] { all_gather_into_tensor(shared, half); });
    expect_refused("gather", [&] { gather(good, {shared, good}, rank); });
    expect_refused("scatter", [&] { scatter(shared, {good, good}, rank); });
    expect_refused("reduce_scatter", [&] { reduce_scatter(shared, {good, good}); });
    expect_refused("reduce_scatter_tensor", [&] { reduce_scatter_tensor(shared, torch::ones({8})); });
    expect_refused("all_to_all", [&] { all_to_all({shared, good}, {good, good}); });
    expect_refused("all_to_all_single", [&] { all_to_all_single(shared, good); });
    expect_refused("recv", [&] { recv(shared, 1 - rank); });
    barrier();
  });
}

TEST(OperationsMulti, SplitsThatDifferBetweenRanksAreToldToAll) {
  run_ranks(2, [](int rank) {
    const torch::Tensor input = torch::arange(4, torch::kFloat) + 10 * rank;
    const torch::Tensor output = torch::zeros({4});
    // Rank 0 sends 3 to rank 1, which expects 2.
    const AllToAllSingleOptions wrong = rank == 0
                                            ? AllToAllSingleOptions{.output_splits = {1, 3}, .input_splits = {1, 3}}
                                            : AllToAllSingleOptions{.output_splits = {2, 2}, .input_splits = {3, 1}};
    expect_error(ErrorCode::kMismatch,
                 {"all_to_all", "rank 1 at c10d/operations_test.cpp:", "expects 8 bytes from rank 0, which sends 12"},
                 [&] { all_to_all_single(output, input, wrong); });
    all_to_all_single(output, input);
    const torch::Tensor expected =
        rank == 0 ? torch::tensor({0.0F, 1.0F, 10.0F, 11.0F}) : torch::tensor({2.0F, 3.0F, 12.0F, 13.0F});
    expect_equal(output, expected, "after splits that differed");
  });
}

}  // namespace
}  // namespace lockstep::test
