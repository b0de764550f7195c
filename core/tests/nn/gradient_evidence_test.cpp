// FiniteCheck names the ranks whose gradients were not finite before their mean.
#include "nn/ddp/gradient_evidence.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>

#include "lockstep/nn/finite_check.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

Net make_small() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

class GradientEvidenceMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GradientEvidenceMulti, testing::Values(2, 3));

// A finite loss with a bad gradient on the last rank: after the mean all ranks have it.
TEST_P(GradientEvidenceMulti, NameTheRankThatHasSentABadGradient) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int last = get_world_size() - 1;
    for (const auto& [checks_per_sweep, in_buckets] : {std::pair(0, true), {0, false}, {3, true}}) {
      Net net = make_small();
      DistributedDataParallel<Net> ddp(net, {.gradient_as_bucket_view = in_buckets});
      FiniteCheck finite(*net, {.checks_per_sweep = checks_per_sweep});
      torch::optim::SGD sgd(net->parameters(), 0.1);
      torch::Tensor weight = net->named_parameters()["2.weight"];
      std::string error = "no error";
      for (int step = 0; step < 7 && error == "no error"; ++step) {
        sgd.zero_grad();
        const torch::Tensor loss = ddp->forward(random_input({4, 6}, step)).square().mean();
        const auto hook = weight.register_hook(
            [&](const torch::Tensor& gradient) { return step == 2 && number == last ? gradient / 0 : gradient; });
        loss.backward();
        weight.remove_hook(hook);
        error = error_of([&] { finite.check(loss); });
        sgd.step();
      }
      expect_in(error, {fmt::format("rank {} has sent a gradient of '2.weight' that was not finite", last)});
      EXPECT_EQ(error.find("rank 0 has sent"), std::string::npos) << error;
      EXPECT_EQ(error.find("step 2: ") != std::string::npos, checks_per_sweep == 0) << error;
      EXPECT_EQ(error.find("that was not finite in step 2") != std::string::npos, checks_per_sweep > 0) << error;
    }
  });
}

// The program goes back to a checkpoint and does the same again. What has been seen before is forgotten.
TEST_P(GradientEvidenceMulti, NameTheRankAgainAfterSetStep) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int last = get_world_size() - 1;
    Net net = make_small();
    DistributedDataParallel<Net> ddp(net);
    FiniteCheck finite(*net, {.checks_per_sweep = 3});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (const int bad_rank : {0, last}) {
      const Net fresh = make_small();
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < net->parameters().size(); ++i) net->parameters()[i].copy_(fresh->parameters()[i]);
      }
      finite.set_step(5);
      std::string error = "no error";
      for (int step = 5; step < 12 && error == "no error"; ++step) {
        sgd.zero_grad();
        const torch::Tensor loss = ddp->forward(random_input({4, 6}, step)).square().mean();
        loss.backward(torch::full({}, step == 5 && number == bad_rank ? std::nan("") : 1.0F));
        error = error_of([&] { finite.check(loss); });
        sgd.step();
      }
      expect_in(error,
                {fmt::format("rank {} has sent a gradient of '0.weight' that was not finite in step 5", bad_rank)});
      EXPECT_EQ(error.find(fmt::format("rank {} has sent", last - bad_rank)), std::string::npos) << error;
    }
  });
}

// Of a large gradient some values are looked at: rows of bad values are found in each dtype.
TEST(GradientEvidence, FindsRowsOfBadValues) {
  const double bad[] = {std::nan(""), std::numeric_limits<double>::infinity()};
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat}) {
    for (const std::int64_t columns : {1, 7, 5000}) {
      torch::Tensor gradient = torch::ones({60, columns}, dtype);
      EXPECT_TRUE(nn_detail::looks_finite(gradient)) << dtype << columns;
      gradient[59].fill_(bad[columns % 2]);
      EXPECT_FALSE(nn_detail::looks_finite(gradient)) << dtype << columns;
    }
    torch::Tensor one = torch::ones({nn_detail::kLooked}, dtype);
    one[17] = bad[0];
    EXPECT_EQ(nn_detail::looks_finite(one), false) << dtype;
  }
  EXPECT_TRUE(nn_detail::looks_finite(torch::ones({3}, torch::kInt)));
}

// Rows of 1024 values: a step of a power of two would meet the same columns in each row.
TEST(GradientEvidence, FindsAColumnAndEachRowOfAMatrix) {
  for (const std::int64_t rows : {std::int64_t{64}, nn_detail::kLooked / 2, nn_detail::kLooked}) {
    const torch::Tensor gradient = torch::ones({rows, 1024});
    for (const std::int64_t which : {std::int64_t{1}, std::int64_t{2}, rows / 2 - 1}) {
      gradient.select(1, which % 1024).fill_(std::nan(""));
      EXPECT_FALSE(nn_detail::looks_finite(gradient)) << rows << ", column " << which % 1024;
      gradient.fill_(1);
      gradient[which].fill_(std::nan(""));
      EXPECT_FALSE(nn_detail::looks_finite(gradient)) << rows << ", row " << which;
      gradient.fill_(1);
    }
  }
}

// Two passes that send in each step, the first of them bad on the last rank: the second has the mean of the first on
// all ranks. A bad pass of rank 0 that no check has looked at is too old to be named.
TEST_P(GradientEvidenceMulti, NameTheRankOfTheFirstBadPassSinceTheLastCheck) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int last = get_world_size() - 1;
    for (const bool with_another : {false, true}) {
      Net net = make_small();
      DistributedDataParallel<Net> ddp(net);
      Net other = make_small();
      std::optional<DistributedDataParallel<Net>> another;
      if (with_another) another.emplace(other);
      FiniteCheck finite(*net);
      torch::Tensor weight = net->named_parameters()["2.weight"];
      const auto pass = [&](int seed, bool bad) {
        const torch::Tensor loss = ddp->forward(random_input({4, 6}, seed)).square().mean();
        const auto hook =
            weight.register_hook([&](const torch::Tensor& gradient) { return bad ? gradient / 0 : gradient; });
        loss.backward();
        weight.remove_hook(hook);
        return loss;
      };
      pass(1, number == 0);
      net->zero_grad();
      const torch::Tensor good = pass(2, false);
      EXPECT_TRUE(finite.check(good));
      net->zero_grad();
      if (another) (*another)->forward(random_input({4, 6}, 3)).sum().backward();
      pass(4, number == last);
      const torch::Tensor loss = pass(5, false);
      const std::string error = error_of([&] { finite.check(loss); });
      expect_in(error,
                {"step 1: ", fmt::format("rank {} has sent a gradient of '2.weight' that was not finite", last)});
      EXPECT_EQ(error.find("rank 0 has sent"), std::string::npos) << error;
    }
  });
}

}  // namespace
}  // namespace lockstep::test
