// Every collective against torch's own arithmetic, in worlds of 1 to 5 processes.
#include "lockstep/c10d/collectives.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "c10d/backend/tensor_rules.h"
#include "c10d/cases.h"
#include "c10d/ranks.h"
#include "support/both_forms.h"

namespace lockstep::test {
namespace {

int last_rank(const Case& c) {
  return c.world - 1;
}

void check_all_reduce(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor tensor = make_like(c, inputs[c.rank]);
  RUN(c, all_reduce, tensor);
  expect_equal(tensor, reduce_locally(inputs, c10d::ReduceOp::SUM), "all_reduce " + c.text());
}

void check_all_reduce_coalesced(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor first = make_like(c, inputs[c.rank]);
  const torch::Tensor second = torch::full({7}, c.rank + 1, torch::kInt);
  RUN(c, all_reduce_coalesced, {first, second});
  expect_equal(first, reduce_locally(inputs, c10d::ReduceOp::SUM), "all_reduce_coalesced " + c.text());
  expect_equal(second, torch::full({7}, c.world * (c.world + 1) / 2, torch::kInt), "all_reduce_coalesced " + c.text());
}

void check_reduce(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor tensor = make_like(c, inputs[c.rank]);
  RUN(c, reduce, tensor, last_rank(c));
  expect_equal(tensor, c.rank == last_rank(c) ? reduce_locally(inputs, c10d::ReduceOp::SUM) : inputs[c.rank],
               "reduce " + c.text());
}

void check_broadcast(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor tensor = make_like(c, inputs[c.rank]);
  RUN(c, broadcast, tensor, last_rank(c));
  expect_equal(tensor, inputs.back(), "broadcast " + c.text());
}

// Rank r contributes size + r elements.
void check_all_gather_uneven(const Case& c) {
  std::vector<torch::Tensor> outputs;
  for (int rank = 0; rank < c.world; ++rank) outputs.push_back(make_zeros(c, c.size + rank));
  RUN(c, all_gather, outputs, make_like(c, values_of(c.dtype, c.size + c.rank, c.rank)));
  for (int rank = 0; rank < c.world; ++rank) {
    expect_equal(outputs[rank], values_of(c.dtype, c.size + rank, rank), "all_gather " + c.text());
  }
}

void check_all_gather_into_tensor(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor output = make_zeros(c, c.size * c.world);
  RUN(c, all_gather_into_tensor, output, make_like(c, inputs[c.rank]));
  expect_equal(output, torch::cat(inputs), "all_gather_into_tensor " + c.text());
  // In place: the input is this rank's slice of the output.
  output.zero_();
  const torch::Tensor part = output.narrow(0, c.rank * c.size, c.size).copy_(inputs[c.rank]);
  RUN(c, all_gather_into_tensor, output, part);
  expect_equal(output, torch::cat(inputs), "all_gather_into_tensor in place " + c.text());
}

// With two inputs: an uneven one of the case, and a small one of another dtype.
void check_all_gather_coalesced(const Case& c) {
  std::vector<std::vector<torch::Tensor>> outputs;
  for (int rank = 0; rank < c.world; ++rank) {
    outputs.push_back({make_zeros(c, c.size + rank), torch::zeros({2}, torch::kInt)});
  }
  const torch::Tensor mine = make_like(c, values_of(c.dtype, c.size + c.rank, c.rank));
  RUN(c, all_gather_coalesced, outputs, {mine, torch::full({2}, c.rank, torch::kInt)});
  for (int rank = 0; rank < c.world; ++rank) {
    expect_equal(outputs[rank][0], values_of(c.dtype, c.size + rank, rank), "all_gather_coalesced " + c.text());
    expect_equal(outputs[rank][1], torch::full({2}, rank, torch::kInt), "all_gather_coalesced " + c.text());
  }
}

void check_all_gather_into_tensor_coalesced(const Case& c) {
  const auto inputs = values_of_all(c);
  const torch::Tensor first = make_zeros(c, c.size * c.world);
  const torch::Tensor second = torch::zeros({c.world}, torch::kInt);
  RUN(c, all_gather_into_tensor_coalesced, {first, second},
      {make_like(c, inputs[c.rank]), torch::full({1}, c.rank, torch::kInt)});
  expect_equal(first, torch::cat(inputs), "all_gather_into_tensor_coalesced " + c.text());
  expect_equal(second, torch::arange(c.world, torch::kInt), "all_gather_into_tensor_coalesced " + c.text());
}

void check_gather(const Case& c) {
  const auto inputs = values_of_all(c);
  std::vector<torch::Tensor> outputs;
  if (c.rank == last_rank(c)) {
    for (int rank = 0; rank < c.world; ++rank) outputs.push_back(make_zeros(c, c.size));
  }
  RUN(c, gather, make_like(c, inputs[c.rank]), outputs, last_rank(c));
  for (std::size_t i = 0; i < outputs.size(); ++i) expect_equal(outputs[i], inputs[i], "gather " + c.text());
}

void check_scatter(const Case& c) {
  const auto all = values_of_all(c);
  std::vector<torch::Tensor> inputs;
  if (c.rank == last_rank(c)) {
    for (const torch::Tensor& values : all) inputs.push_back(make_like(c, values));
  }
  const torch::Tensor output = make_zeros(c, c.size);
  RUN(c, scatter, output, inputs, last_rank(c));
  expect_equal(output, all[c.rank], "scatter " + c.text());
}

// Rank r's slice for rank s is values_of(r + s).
void check_reduce_scatter(const Case& c) {
  std::vector<torch::Tensor> mine;
  std::vector<torch::Tensor> for_me;
  for (int rank = 0; rank < c.world; ++rank) {
    mine.push_back(make_like(c, values_of(c.dtype, c.size, c.rank + rank)));
    for_me.push_back(values_of(c.dtype, c.size, rank + c.rank));
  }
  const torch::Tensor expected = reduce_locally(for_me, c10d::ReduceOp::SUM);
  const torch::Tensor output = make_zeros(c, c.size);
  RUN(c, reduce_scatter, output, mine);
  expect_equal(output, expected, "reduce_scatter " + c.text());
  output.zero_();
  RUN(c, reduce_scatter_tensor, output, make_like(c, torch::cat(mine)));
  expect_equal(output, expected, "reduce_scatter_tensor " + c.text());
  output.zero_();
  const torch::Tensor ranks = torch::zeros({1}, torch::kInt);
  RUN(c, reduce_scatter_tensor_coalesced, {output, ranks},
      {make_like(c, torch::cat(mine)), torch::arange(c.world, torch::kInt)});
  expect_equal(output, expected, "reduce_scatter_tensor_coalesced " + c.text());
  expect_equal(ranks, torch::full({1}, c.rank * c.world, torch::kInt), "reduce_scatter_tensor_coalesced " + c.text());
}

// Rank r sends r + s elements more than c.size to rank s.
void check_all_to_all(const Case& c) {
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> outputs;
  std::vector<torch::Tensor> expected;
  AllToAllSingleOptions splits;
  for (int rank = 0; rank < c.world; ++rank) {
    const std::int64_t size = c.size + c.rank + rank;
    inputs.push_back(make_like(c, values_of(c.dtype, size, 10 * c.rank + rank)));
    outputs.push_back(make_zeros(c, size));
    expected.push_back(values_of(c.dtype, size, 10 * rank + c.rank));
    splits.input_splits.push_back(size);
    splits.output_splits.push_back(size);
  }
  RUN(c, all_to_all, outputs, inputs);
  for (int rank = 0; rank < c.world; ++rank) expect_equal(outputs[rank], expected[rank], "all_to_all " + c.text());

  const torch::Tensor input = make_like(c, torch::cat(inputs));
  const torch::Tensor output = make_zeros(c, input.numel());
  RUN(c, all_to_all_single, output, input, splits);
  expect_equal(output, torch::cat(expected), "all_to_all_single " + c.text());
}

void check_even_all_to_all(int rank, int world) {
  const torch::Tensor input = torch::full({2 * world, 3}, rank, torch::kInt);
  const torch::Tensor output = torch::empty_like(input);
  all_to_all_single(output, input);
  expect_equal(output, torch::arange(world, torch::kInt).repeat_interleave(2).unsqueeze(1).repeat({1, 3}),
               "even all_to_all_single");
}

// A ring; then every rank sends to the last one, which receives from any source.
void check_point_to_point(const Case& c) {
  if (c.world == 1) return;
  const int next = (c.rank + 1) % c.world;
  const int previous = (c.rank + c.world - 1) % c.world;
  const torch::Tensor mine = make_like(c, values_of(c.dtype, c.size, c.rank));
  const torch::Tensor received = make_zeros(c, c.size);
  const Work sent = isend(mine, next, {.tag = 3});
  if (c.async) {
    irecv(received, previous, {.tag = 3})->wait();
  } else {
    EXPECT_EQ(recv(received, previous, {.tag = 3}), previous);
  }
  sent->wait();
  expect_equal(received, values_of(c.dtype, c.size, previous), "ring " + c.text());

  if (c.rank != last_rank(c)) {
    send(mine, last_rank(c), {.tag = 4});
    return;
  }
  std::set<int> senders;
  for (int i = 0; i < c.world - 1; ++i) {
    int sender = -1;
    if (c.async) {
      const Work work = irecv(received, kAnySource, {.tag = 4});
      work->wait();
      sender = work->sourceRank();
    } else {
      sender = recv(received, kAnySource, {.tag = 4});
    }
    senders.insert(sender);
    expect_equal(received, values_of(c.dtype, c.size, sender), "from any " + c.text());
  }
  EXPECT_EQ(static_cast<int>(senders.size()), c.world - 1);
}

// In a dtype that torch can compare: it cannot compare complex32.
torch::Tensor plain(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kComplexHalf ? tensor.to(torch::kComplexFloat) : tensor;
}

// AVG where the dtype cannot hold the sum. PyTorch's Gloo has no mean of integers at all.
void check_means_of_integers(int rank, int world) {
  const std::map<torch::ScalarType, std::int64_t> largest{
      {torch::kByte, 255},     {torch::kChar, 127},          {torch::kShort, 32767},       {torch::kInt, 2147483647},
      {torch::kUInt16, 65535}, {torch::kUInt32, 4294967295}, {torch::kLong, 1'000'000'007}};
  for (const auto& [dtype, value] : largest) {
    for (const std::int64_t size : {3, 70'000}) {
      for (const bool async : {false, true}) {
        const Case c{dtype, size, Memory::kPlain, async, rank, world};
        const std::int64_t sum = value * world - world * (world - 1) / 2;
        const torch::Tensor expected = torch::full({size}, sum / world, torch::kLong).to(dtype);
        const torch::Tensor mine = torch::full({size}, value - rank, torch::kLong).to(dtype);
        const ReductionOptions mean{.op = c10d::ReduceOp::AVG};
        const torch::Tensor tensor = mine.clone();
        RUN(c, all_reduce, tensor, mean);
        expect_equal(tensor, expected, "mean by all_reduce, " + c.text());
        tensor.copy_(mine);
        RUN(c, reduce, tensor, world - 1, mean);
        expect_equal(tensor, rank == world - 1 ? expected : mine, "mean by reduce, " + c.text());
        RUN(c, reduce_scatter, tensor, std::vector<torch::Tensor>(world, mine), mean);
        expect_equal(tensor, expected, "mean by reduce_scatter, " + c.text());
        tensor.zero_();
        RUN(c, reduce_scatter_tensor, tensor, mine.repeat({world}), mean);
        expect_equal(tensor, expected, "mean by reduce_scatter_tensor, " + c.text());
      }
    }
  }
}

// Views that torch resolves when it reads them: conjugates, negatives of imaginary parts, both at once, zeros without
// memory. `make(values)` returns such a view with the elements of `values`.
using MakeView = std::function<torch::Tensor(const torch::Tensor& values)>;

void check_lazy_view(const Case& c, const std::string& name, torch::ScalarType dtype, const MakeView& make) {
  const std::string what = name + ", " + c.text();
  const Case own{dtype, c.size, Memory::kPlain, c.async, c.rank, c.world};
  const auto values = values_of_all(own);
  const auto is = [&](const torch::Tensor& actual, const torch::Tensor& expected, const char* operation) {
    EXPECT_TRUE(torch::equal(plain(actual.resolve_conj().resolve_neg()), plain(expected))) << operation << ", " << what;
  };
  const auto mine = [&] { return make(values[c.rank]); };
  const auto zeros = [&] { return make(torch::zeros({c.size}, dtype)); };
  const torch::Tensor sum = reduce_locally(values, c10d::ReduceOp::SUM);
  torch::Tensor view = mine();
  RUN(c, all_reduce, view);
  is(view, sum, "all_reduce");
  view = mine();
  RUN(c, all_reduce_coalesced, {view});
  is(view, sum, "all_reduce_coalesced");
  view = mine();
  RUN(c, reduce, view, 0);
  is(view, c.rank == 0 ? sum : values[c.rank], "reduce");
  view = mine();
  RUN(c, broadcast, view, c.world - 1);
  is(view, values.back(), "broadcast");
  std::vector<torch::Tensor> views;
  std::vector<torch::Tensor> inputs;
  for (int rank = 0; rank < c.world; ++rank) {
    views.push_back(zeros());
    inputs.push_back(make(values[rank]));
  }
  RUN(c, all_gather, views, mine());
  for (int rank = 0; rank < c.world; ++rank) is(views[rank], values[rank], "all_gather");
  RUN(c, all_to_all, views, inputs);
  for (int rank = 0; rank < c.world; ++rank) is(views[rank], values[c.rank], "all_to_all");
  RUN(c, gather, mine(), c.rank == 0 ? views : std::vector<torch::Tensor>(), 0);
  for (int rank = 0; rank < c.world && c.rank == 0; ++rank) is(views[rank], values[rank], "gather");
  view = zeros();
  RUN(c, scatter, view, c.rank == 0 ? inputs : std::vector<torch::Tensor>(), 0);
  is(view, values[c.rank], "scatter");
  RUN(c, reduce_scatter, view, inputs);
  is(view, reduce_locally(std::vector<torch::Tensor>(c.world, values[c.rank]), c10d::ReduceOp::SUM), "reduce_scatter");
  const torch::Tensor all = make(torch::zeros({c.size * c.world}, dtype));
  RUN(c, all_gather_into_tensor, all, mine());
  is(all, torch::cat(values), "all_gather_into_tensor");
  view = zeros();
  RUN(c, reduce_scatter_tensor, view, make(torch::cat(values)));
  is(view, reduce_locally(std::vector<torch::Tensor>(c.world, values[c.rank]), c10d::ReduceOp::SUM),
     "reduce_scatter_tensor");
  const torch::Tensor swapped = make(torch::zeros({c.size * c.world}, dtype));
  RUN(c, all_to_all_single, swapped, make(torch::cat(values)));
  is(swapped, values[c.rank].repeat({c.world}), "all_to_all_single");
  if (c.world == 1) return;
  view = zeros();
  const Work sent = isend(mine(), (c.rank + 1) % c.world);
  irecv(view, (c.rank + c.world - 1) % c.world)->wait();
  sent->wait();
  is(view, values[(c.rank + c.world - 1) % c.world], "messages");
}

void check_lazy_views(int rank, int world) {
  const auto conjugate = [](const torch::Tensor& values) { return values.conj().resolve_conj().conj(); };
  const auto negative = [](const torch::Tensor& values) {
    const torch::Tensor view = torch::imag(torch::complex(torch::zeros_like(values), -values).conj());
    EXPECT_TRUE(view.is_neg());
    return view;
  };
  for (const std::int64_t size : {3, 20'000}) {
    for (const bool async : {false, true}) {
      const Case c{torch::kFloat, size, Memory::kPlain, async, rank, world};
      check_lazy_view(c, "conjugate", torch::kComplexFloat, conjugate);
      check_lazy_view(c, "conjugate", torch::kComplexHalf, conjugate);
      check_lazy_view(c, "negative", torch::kFloat, negative);
      const torch::Tensor zero = at::_efficientzerotensor({size}, torch::kFloat);
      const torch::Tensor all = torch::ones({size * world});
      RUN(c, all_gather_into_tensor, all, zero);
      EXPECT_EQ(all.abs().sum().item<float>(), 0) << "ZeroTensor, " << c.text();
    }
  }
}

// Every dtype with every reduction: the right result, or an error that names both.
void check_reductions(int rank, int world) {
  using Op = c10d::ReduceOp;
  const auto dtypes = {torch::kByte,         torch::kChar,          torch::kShort,    torch::kInt,
                       torch::kLong,         torch::kHalf,          torch::kFloat,    torch::kDouble,
                       torch::kComplexFloat, torch::kComplexDouble, torch::kBFloat16, torch::kUInt16,
                       torch::kUInt32,       torch::kUInt64,        torch::kBool,     torch::kComplexHalf};
  for (const auto dtype : dtypes) {
    for (const auto op : {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX, Op::BAND, Op::BOR, Op::BXOR}) {
      Case c{dtype, 100, Memory::kPlain, false, rank, world};
      const auto inputs = values_of_all(c);
      const torch::Tensor tensor = inputs[rank].clone();
      const std::string what = c10::str("reduction ", static_cast<int>(op), " of ", c10::toString(dtype));
      if (comm::is_supported(data_type(dtype), static_cast<comm::ReduceOp>(op))) {
        all_reduce(tensor, {.op = op});
        const torch::Tensor expected = reduce_locally(inputs, op);
        EXPECT_TRUE(op == Op::AVG ? torch::allclose(plain(tensor), plain(expected), 1e-2)
                                  : torch::equal(plain(tensor), plain(expected)))
            << what;
      } else {
        expect_error(ErrorCode::kInvalidArgument, {"all_reduce", "is not defined for", c10::toString(dtype)},
                     [&] { all_reduce(tensor, {.op = op}); });
        EXPECT_TRUE(torch::equal(plain(tensor), plain(inputs[rank]))) << what;
      }
    }
  }
  Case c{torch::kDouble, 100, Memory::kPlain, false, rank, world};
  const auto inputs = values_of_all(c);
  const torch::Tensor tensor = inputs[rank].clone();
  all_reduce(tensor, {.op = premul_sum(0.5)});
  expect_equal(tensor, reduce_locally(inputs, Op::PREMUL_SUM, 0.5), "premul_sum");
}

// Strides and conjugation may differ between ranks: elements are matched by index.
void check_mixed_layouts(int rank, int world) {
  const torch::Tensor values = torch::arange(24, torch::kFloat).reshape({4, 6});
  const torch::Tensor tensor = rank % 2 == 0 ? values.clone() : values.t().contiguous().t();
  all_reduce(tensor);
  expect_equal(tensor, values * world, "rows and columns");

  const torch::Tensor complex_values = torch::complex(values, values + 1);
  const torch::Tensor conjugated = complex_values.clone().conj();
  all_reduce(conjugated);
  expect_equal(conjugated.resolve_conj(), complex_values.conj().resolve_conj() * world, "conjugated");

  // Dtypes without arithmetic are moved as bytes.
  const torch::Tensor eighths = (values + rank).to(at::kFloat8_e4m3fn);
  broadcast(eighths, world - 1);
  expect_equal(eighths.view(torch::kByte), (values + (world - 1)).to(at::kFloat8_e4m3fn).view(torch::kByte), "float8");
}

// Every rank has elements of its own and one that all have.
void check_sparse(int rank, int world) {
  const torch::Tensor indices = torch::tensor({rank, world, rank}, torch::kLong).unsqueeze(0);
  const torch::Tensor tensor =
      torch::sparse_coo_tensor(indices, torch::tensor({1.0, 2.0, 0.5}, torch::kDouble), {world + 1}, torch::kDouble);
  all_reduce(tensor);
  torch::Tensor expected = torch::full({world + 1}, 1.5, torch::kDouble);
  expected[world] = 2.0 * world;
  expect_equal(tensor.to_dense(), expected, "sparse");
  const torch::Tensor none = torch::sparse_coo_tensor({3, 2}, torch::kFloat);
  all_reduce(none);
  expect_equal(none.to_dense(), torch::zeros({3, 2}), "sparse, empty");
}

// Every rank sends to every rank, itself included: first all sends, then all receives.
void check_batch(int rank, int world) {
  std::vector<torch::Tensor> received;
  std::vector<PointToPoint> list;
  const torch::Tensor mine = torch::full({20'000}, rank);
  for (int peer = 0; peer < world; ++peer) list.push_back({PointToPoint::Kind::kSend, mine, peer});
  for (int peer = 0; peer < world; ++peer) {
    received.push_back(torch::empty_like(mine));
    list.push_back({PointToPoint::Kind::kReceive, received.back(), peer});
  }
  for (const Work& work : batch_isend_irecv(list)) work->wait();
  for (int peer = 0; peer < world; ++peer) expect_equal(received[peer], torch::full_like(mine, peer), "batch");
}

class CollectivesMulti : public testing::TestWithParam<int> {};

TEST_P(CollectivesMulti, AgreeWithTorch) {
  const int world = GetParam();
  run_world(world, [world](int rank) {
    torch::set_num_threads(1);
    EXPECT_EQ(get_world_size(), world);
    EXPECT_EQ(get_rank(), rank);
    for_each_case(rank, world, [](const Case& c) {
      for (const auto check :
           {check_all_reduce, check_all_reduce_coalesced, check_reduce, check_broadcast, check_all_gather_uneven,
            check_all_gather_into_tensor, check_all_gather_coalesced, check_all_gather_into_tensor_coalesced,
            check_gather, check_scatter, check_reduce_scatter, check_all_to_all, check_point_to_point}) {
        check(c);
      }
    });
    check_even_all_to_all(rank, world);
    check_reductions(rank, world);
    check_means_of_integers(rank, world);
    check_lazy_views(rank, world);
    check_mixed_layouts(rank, world);
    check_sparse(rank, world);
    check_batch(rank, world);
    barrier();
    barrier_async()->wait();
    monitored_barrier({.timeout = std::chrono::seconds(30)});
  });
}

#ifdef LOCKSTEP_TEST_OVER_MPI
INSTANTIATE_TEST_SUITE_P(MpiWorlds, CollectivesMulti, testing::Values(1, 2, 3, 4));
#else
INSTANTIATE_TEST_SUITE_P(Worlds, CollectivesMulti, testing::Values(1, 2, 3, 4, 5));
#endif

}  // namespace
}  // namespace lockstep::test
