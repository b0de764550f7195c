// Gradients, buffers and parameters whose memory is not simply their elements: lazily conjugated or negated,
// transposed, expanded, sliced. Autograd in one process, over the inputs of all ranks, gives the expected values.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <vector>

#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

class DdpLazyViewsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpLazyViewsMulti, testing::Values(2, 3));

// The form of view that passes on `elements`, whose rows are equal.
enum Form : int { kPlain, kTransposed, kExpanded, kSliced };
struct View {
  bool conjugated = false;
  bool negated = false;
  Form form = kPlain;
};

// A tensor with the same elements.
torch::Tensor as_view(torch::Tensor elements, const View& view) {
  if (view.conjugated) elements = elements.conj().resolve_conj();
  if (view.negated) elements = elements.neg();
  elements = elements.contiguous();
  if (view.form == kTransposed) elements = elements.t().contiguous().t();
  if (view.form == kExpanded) elements = elements.narrow(0, 0, 1).expand_as(elements);
  if (view.form == kSliced)
    elements = torch::cat({elements, elements}, 1).narrow(1, elements.size(1), elements.size(1));
  if (view.conjugated) elements = elements.conj();
  return view.negated ? at::_neg_view(elements) : elements;
}

std::string name_of(const View& view) {
  static const std::array forms{"plain", "transposed", "expanded", "sliced"};
  return fmt::format("{}{}{}", view.conjugated ? "conjugated " : "", view.negated ? "negated " : "", forms[view.form]);
}

std::vector<View> views_of(torch::Dtype dtype) {
  std::vector<View> views;
  for (const bool conjugated : {false, true}) {
    if (conjugated && !c10::isComplexType(dtype)) continue;
    for (const bool negated : {false, true}) {
      for (const Form form : {kPlain, kTransposed, kExpanded, kSliced}) views.push_back({conjugated, negated, form});
    }
  }
  return views;
}

// The dtypes with the smallest and the largest elements; with LOCKSTEP_TEST_GRID=all all four.
std::vector<torch::Dtype> dtypes_of_views() {
  if (::getenv("LOCKSTEP_TEST_GRID") == nullptr) return {torch::kFloat, torch::kComplexDouble};
  return {torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kComplexDouble};
}

// The identity, but with its gradient in that form.
struct Shaped : torch::autograd::Function<Shaped> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, const View* view,
                               bool sparse) {
    context->saved_data["view"] = reinterpret_cast<std::int64_t>(view);
    context->saved_data["sparse"] = sparse;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto& view = *reinterpret_cast<const View*>(context->saved_data["view"].toInt());
    torch::Tensor gradient = as_view(gradients[0], view);
    if (context->saved_data["sparse"].toBool()) {
      const torch::Tensor rows = torch::arange(gradient.size(0)).flip(0).unsqueeze(0);  // uncoalesced: rows backwards
      gradient = at::_sparse_coo_tensor_unsafe(rows, as_view(gradients[0].flip(0), view), gradient.sizes());
    }
    return {gradient, torch::Tensor(), torch::Tensor()};
  }
};

// One parameter whose gradient is computed in its bucket (from 32 KiB), and one whose gradient is copied there.
struct LargeAndSmallImpl : torch::nn::Module {
  explicit LargeAndSmallImpl(torch::Dtype dtype, View the_view = {}) : view(the_view) {
    large = register_parameter("large", torch::randn({96, 96}, dtype));
    small = register_parameter("small", torch::randn({5, 7}, dtype));
  }
  // `factor` has one number per rank and step; the gradient's rows are equal.
  torch::Tensor forward(double factor) {
    torch::Tensor sum = loss_of(large, factor) + loss_of(small, 2 * factor);
    if (late.defined()) sum = sum + loss_of(late, 3 * factor);
    return sum;
  }
  torch::Tensor loss_of(const torch::Tensor& parameter, double factor) const {
    torch::Tensor row = torch::arange(1, parameter.size(1) + 1).to(parameter.scalar_type()) * factor;
    if (parameter.is_complex()) row = row * c10::complex<double>(0.5, -0.25);
    const torch::Tensor used = plain ? parameter : Shaped::apply(parameter, &view, sparse);
    const torch::Tensor sum = (used * row).sum();
    return parameter.is_complex() ? torch::real(sum) : sum;
  }
  View view;
  bool plain = false;
  bool sparse = false;
  torch::Tensor large, small, late;
};
TORCH_MODULE(LargeAndSmall);

double factor_of(int rank, int step) {
  return 1.0 + rank + 0.125 * step;
}

// The gradients after `steps` backward passes, each the mean over ranks, computed in one process.
LargeAndSmall in_one_process(const LargeAndSmall& net, const std::vector<int>& steps) {
  LargeAndSmall judge(net->large.scalar_type());
  judge->plain = true;
  if (net->late.defined()) judge->late = judge->register_parameter("late", torch::zeros_like(net->late));
  for (const int step : steps) {
    for (int rank = 0; rank < get_world_size(); ++rank) {
      (judge->forward(factor_of(rank, step)) / get_world_size()).backward();
    }
  }
  return judge;
}

void expect_judged(const LargeAndSmall& net, const std::vector<int>& steps, const std::string& where) {
  expect_same_gradients(*net, *in_one_process(net, steps), where, {1e-5, 1e-6});
}

TEST_P(DdpLazyViewsMulti, GradientsInEveryForm) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const torch::Dtype dtype : dtypes_of_views()) {
      for (const View& view : views_of(dtype)) {
        for (const bool in_buckets : {true, false}) {
          if (!in_buckets && view.form != kPlain) continue;
          LargeAndSmall net(dtype, view);
          DistributedDataParallel<LargeAndSmall> ddp(net,
                                                     {.bucket_cap_mb = 0.05, .gradient_as_bucket_view = in_buckets});
          const auto where = [&](const char* what) {
            return fmt::format("{} {}, in buckets {}, {}", c10::toString(dtype), name_of(view), in_buckets, what);
          };
          for (int step = 0; step < 3; ++step) {
            net->zero_grad();
            ddp->forward(factor_of(number, step)).backward();
            expect_judged(net, {step}, where("synchronised"));
          }
          net->zero_grad();
          {
            const auto guard = ddp.no_sync();
            ddp->forward(factor_of(number, 3)).backward();
          }
          ddp->forward(factor_of(number, 4)).backward();
          expect_judged(net, {3, 4}, where("accumulated"));
          net->late = net->register_parameter("late", torch::randn({70, 70}, dtype));
          for (int step = 5; step < 7; ++step) {
            net->zero_grad();
            ddp->forward(factor_of(number, step)).backward();
            expect_judged(net, {step}, where("with a parameter added"));
          }
        }
      }
    }
  });
}

TEST_P(DdpLazyViewsMulti, SparseGradients) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const torch::Dtype dtype : dtypes_of_views()) {
      for (const View& view : views_of(dtype)) {
        LargeAndSmall net(dtype, view);
        net->sparse = true;
        DistributedDataParallel<LargeAndSmall> ddp(net);
        for (int step = 0; step < 2; ++step) {
          net->zero_grad();
          ddp->forward(factor_of(number, step)).backward();
          expect_judged(net, {step}, fmt::format("{} sparse {}", c10::toString(dtype), name_of(view)));
        }
      }
    }
  });
}

// A gradient that was not made by the backward pass is averaged too, also by average_gradients.
TEST_P(DdpLazyViewsMulti, GradientsSetByHand) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    for (const torch::Dtype dtype : dtypes_of_views()) {
      for (View view : views_of(dtype)) {
        if (view.form == kExpanded) continue;  // nobody can write to it
        LargeAndSmall net(dtype, view);
        net->late = net->register_parameter("late", torch::randn({70, 70}, dtype));
        DistributedDataParallel<LargeAndSmall> ddp(net);
        const torch::Tensor of_rank_0 = torch::randn({1, 70}, dtype).expand({70, 70}) / 2;
        torch::Tensor value = of_rank_0.clone();
        broadcast(value, 0);
        for (int step = 0; step < 3; ++step) {
          net->zero_grad();
          const torch::Tensor hidden = std::exchange(net->late, torch::Tensor());
          hidden.mutable_grad() = as_view(value * (number + 1), view);
          ddp->forward(factor_of(number, step)).backward();
          const torch::Tensor mean = value * (world + 1) / 2;
          EXPECT_TRUE(torch::allclose(hidden.grad(), mean, 1e-5, 1e-6)) << name_of(view) << ", step " << step;
          hidden.mutable_grad() = as_view(value * (number + 1), view);
          average_gradients(std::vector<torch::Tensor>{hidden});
          EXPECT_TRUE(torch::allclose(hidden.grad(), mean, 1e-5, 1e-6)) << name_of(view) << ", by hand";
          net->late = hidden;
        }
      }
    }
  });
}

struct KeeperImpl : torch::nn::Module {
  KeeperImpl(torch::Dtype dtype, const View& of_buffer, double seed) {
    layer = register_module("layer", torch::nn::Linear(2, 2));
    for (const char* name : {"one", "two"}) {
      const torch::Tensor row = (torch::arange(1, 6).to(dtype) * seed).unsqueeze(0);
      torch::Tensor value = row.expand({4, 5}).clone();
      if (c10::isComplexType(dtype)) value = value * c10::complex<double>(1, 0.5);
      register_buffer(name, as_view(value, of_buffer));
    }
  }
  torch::Tensor forward() { return layer(torch::ones({1, 2})).sum(); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Keeper);

TEST_P(DdpLazyViewsMulti, BuffersAndParametersAreSentByValue) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const torch::Dtype dtype : dtypes_of_views()) {
      for (const View& view : views_of(dtype)) {
        // Ranks need the same strides, not the same bits.
        const View of_others{number % 2 == 0 && view.conjugated, number % 3 == 0 && view.negated, view.form};
        Keeper net(dtype, number == 0 ? view : of_others, number + 1.0);
        const Keeper expected(dtype, View(), 1.0);
        DistributedDataParallel<Keeper> ddp(net);
        const auto check = [&](const char* when, double factor) {
          for (const auto& item : net->named_buffers()) {
            EXPECT_TRUE(torch::allclose(item.value(), expected->named_buffers()[item.key()] * factor))
                << c10::toString(dtype) << ' ' << name_of(view) << ' ' << when << ": " << item.key();
          }
        };
        check("wrapped", 1);
        if (view.form != kExpanded) {
          for (torch::Tensor& buffer : net->buffers()) buffer.mul_(number == 0 ? 2 : -7);
        }
        ddp->forward().backward();
        check("after a pass", view.form == kExpanded ? 1 : 2);
      }
    }
  });
}

// Returns its result lazily conjugated or negated, in the bucket or elsewhere.
struct LazyHook final : CommHook {
  LazyHook(bool in_place, bool conjugate) : in_place_(in_place), conjugate_(conjugate) {}
  std::function<void()> run(GradBucket& bucket) override {
    all_reduce(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
    return [this, &bucket] {
      torch::Tensor result = in_place_ ? bucket.buffer() : bucket.buffer().clone();
      bucket.buffer() = conjugate_ ? result.conj() : at::_neg_view(result);
    };
  }
  bool in_place_;
  bool conjugate_;
};

TEST_P(DdpLazyViewsMulti, ResultsOfCommunicationHooks) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const bool conjugate : {false, true}) {
      for (const bool in_place : {false, true}) {
        LargeAndSmall net(torch::kComplexFloat);
        DistributedDataParallel<LargeAndSmall> ddp(net);
        ddp.register_comm_hook(std::make_shared<LazyHook>(in_place, conjugate));
        for (int step = 0; step < 3; ++step) {
          net->zero_grad();
          ddp->forward(factor_of(number, step)).backward();
          LargeAndSmall judge = in_one_process(net, {step});
          for (torch::Tensor& parameter : judge->parameters()) {
            parameter.mutable_grad() = conjugate ? parameter.grad().conj() : parameter.grad().neg();
          }
          expect_same_gradients(*net, *judge, fmt::format("in place {}, conj {}", in_place, conjugate), {1e-5, 1e-6});
        }
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::test
