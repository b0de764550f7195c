// Models that are not a plain stack of float32 layers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

constexpr bool kSparse = true, kDense = false;  // gradients of an Embedding

class DdpModelsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpModelsMulti, testing::Values(1, 2, 3));

// float32, float64 and bfloat16; a parameter without elements; a complex one.
struct MixedTypesImpl : torch::nn::Module {
  MixedTypesImpl() {
    a = register_module("a", torch::nn::Linear(20, 300));
    b = register_module("b", torch::nn::Linear(300, 100));
    c = register_module("c", torch::nn::Linear(100, 300));
    b->to(torch::kDouble);
    c->to(torch::kBFloat16);
    nothing = register_parameter("nothing", torch::zeros({0, 3}));
    phase = register_parameter("phase", torch::ones({30}, torch::kComplexFloat));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor last = c(b(torch::relu(a(x)).to(torch::kDouble)).to(torch::kBFloat16)).to(torch::kFloat);
    return last.square().mean() + nothing.sum() + torch::view_as_real(phase * x.sum()).square().mean();
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  torch::Tensor nothing, phase;
};
TORCH_MODULE(MixedTypes);

TEST_P(DdpModelsMulti, MixDtypes) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      Twins<MixedTypes> twins([] { return MixedTypes(); }, {.bucket_cap_mb = 0.05, .gradient_as_bucket_view = views});
      for (int step = 0; step < 4; ++step) {
        const torch::Tensor x = random_input({6, 20}, step);
        twins.step([&](MixedTypes& net) { return net->forward(x); }, fmt::format("views {}, step {}", views, step));
        twins.descend();
      }
    }
  });
}

// As programs do that clip or send all gradients as one tensor.
TEST_P(DdpModelsMulti, HaveGradientsThatAreSlicesOfOneTensor) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      Twins<MixedTypes> twins([] { return MixedTypes(); }, {.gradient_as_bucket_view = views});
      torch::Tensor flat;
      for (MixedTypes& net : {std::ref(twins.twin), std::ref(twins.model)}) {
        flat = torch::zeros({6300});
        net->a->weight.mutable_grad() = flat.narrow(0, 0, 6000).view({300, 20});
        net->nothing.mutable_grad() = flat.narrow(0, 6000, 0).view({0, 3});
        net->a->bias.mutable_grad() = flat.narrow(0, 6000, 300);
      }
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor x = random_input({6, 20}, step);
        twins.accumulate([&](MixedTypes& net) { return net->forward(x); },
                         fmt::format("views {}, step {}", views, step));
        if (views) continue;
        EXPECT_TRUE(torch::equal(flat.narrow(0, 6000, 300), twins.twin->a->bias.grad()));
      }
    }
  });
}

struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    first = register_module("first", torch::nn::Linear(20, 300));
    second = register_module("second", torch::nn::Linear(300, 300));
    last = register_module("last", torch::nn::Linear(300, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::relu(second(torch::relu(first(x))));
    if (extra) y = y + extra(y);
    return last(y).square().mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr}, extra{nullptr};
};
TORCH_MODULE(Layers);

void freeze(torch::nn::Module& module, bool frozen) {
  for (torch::Tensor& parameter : module.parameters()) parameter.requires_grad_(!frozen);
}

TEST_P(DdpModelsMulti, FreezeUnfreezeAndGrow) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Layers> twins([] {
      Layers net;
      freeze(*net->second, true);
      return net;
    });
    int step = 0;
    const auto train = [&](const char* what) {
      for (int i = 0; i < 3; ++i, ++step) {
        const torch::Tensor x = random_input({4, 20}, step);
        twins.step([&](Layers& net) { return net->forward(x); }, fmt::format("{}, step {}", what, step));
        twins.descend();
      }
    };
    train("frozen");
    EXPECT_FALSE(twins.model->second->weight.grad().defined());
    for (Layers* net : {&twins.model, &twins.twin}) freeze(*(*net)->second, false);
    train("unfrozen");
    for (Layers* net : {&twins.model, &twins.twin}) {
      torch::manual_seed(get_rank());  // rank 0's must win
      (*net)->extra = (*net)->register_module("extra", torch::nn::Linear(300, 300));
    }
    for (torch::Tensor& parameter : twins.twin->parameters()) broadcast(parameter.detach(), 0);
    train("grown");
    for (Layers* net : {&twins.model, &twins.twin}) freeze(*(*net)->first, true);
    train("frozen again");
    for (Layers* net : {&twins.model, &twins.twin}) (*net)->to(torch::kDouble);
    twins.step([&](Layers& net) { return net->forward(random_input({4, 20}, step).to(torch::kDouble)); }, "converted");
    if (get_rank() == 0) {
      std::vector<torch::Tensor> values;
      for (const torch::Tensor& parameter : twins.model->parameters()) values.push_back(parameter.detach().clone());
      twins.model->to(torch::kFloat);
      twins.model->to(torch::kDouble);  // as it was, but autograd has forgotten the hooks
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < values.size(); ++i) twins.model->parameters()[i].copy_(values[i]);
    }
    twins.step(
        [&](Layers& net) {
          return net->forward(random_input({4, 20}, step).to(torch::kDouble));
        },
        "converted and back on rank 0 alone");
    expect_equal_on_all_ranks(twins.model->parameters(), "parameter");
  });
}

// Also where only buffers are converted, as the parameters beside them are frozen.
TEST_P(DdpModelsMulti, AreConvertedWithTheirBuffers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<torch::nn::Sequential> twins([] {
      return torch::nn::Sequential(torch::nn::Linear(20, 30), torch::nn::BatchNorm1d(30), torch::nn::Linear(30, 2));
    });
    torch::Dtype dtype = torch::kFloat;
    int step = 0;
    const auto train = [&](const char* what) {
      for (int i = 0; i < 2; ++i, ++step) {
        const torch::Tensor x = random_input({4, 20}, step).to(dtype);
        twins.step([&](torch::nn::Sequential& net) { return net->forward(x).square().mean(); }, what);
        expect_equal_on_all_ranks(twins.model->buffers(), what);
        twins.descend();
      }
    };
    train("float");
    for (const torch::Dtype next : {torch::kDouble, torch::kBFloat16}) {
      dtype = next;
      for (auto* net : {&twins.model, &twins.twin}) (*net)->to(dtype);
      train(c10::toString(dtype));
    }
    for (auto* net : {&twins.model, &twins.twin}) freeze(*(*net)->ptr(1), true);
    train("frozen norm");
    for (auto* net : {&twins.model, &twins.twin}) (*net)->ptr(1)->to(torch::kFloat);
    train("norm in float");
  });
}

// One matrix under two names, used twice.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    into = register_module("into", torch::nn::Linear(torch::nn::LinearOptions(200, 200).bias(false)));
    out = register_module("out", into);
    bias = register_parameter("bias", torch::zeros({200}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(into(x)) + bias).square().mean(); }
  torch::nn::Linear into{nullptr}, out{nullptr};
  torch::Tensor bias;
};
TORCH_MODULE(Tied);

TEST_P(DdpModelsMulti, ShareParameters) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Tied> twins([] { return Tied(); });
    EXPECT_EQ(twins.ddp.parameters().size(), 2U) << "an optimizer must not step twice";
    torch::optim::SGD ours(twins.ddp.parameters(), 0.1);
    torch::optim::SGD theirs({twins.twin->bias, twins.twin->into->weight}, 0.1);
    for (int step = 0; step < 4; ++step) {
      const torch::Tensor x = random_input({5, 200}, step);
      twins.step([&](Tied& net) { return net->forward(x); }, fmt::format("step {}", step));
      ours.step();
      theirs.step();
    }
    EXPECT_TRUE(torch::equal(twins.model->into->weight, twins.twin->into->weight));
  });
}

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse = kSparse) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 8).sparse(sparse)));
    late = register_module("late", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 8).sparse(sparse)));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& words, bool use_late) {
    torch::Tensor rows = words.defined() ? table(words) : torch::ones({4, 8});
    if (use_late) rows = rows + late(words).mean();
    return head(rows).square().sum();
  }
  torch::nn::Embedding table{nullptr}, late{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Words);

TEST_P(DdpModelsMulti, HaveSparseGradients) {
  const int world = GetParam();
  run_processes(world, [&](int number) {
    const Rank rank;
    torch::manual_seed(1);
    Words net;
    torch::manual_seed(1);
    Words twin(kDense);
    DistributedDataParallel<Words> ddp(net);
    for (int step = 0; step < 6; ++step) {
      torch::Tensor words = (random_input({7}, step).abs() * 10).to(torch::kLong).clamp(0, 49);
      if (number == step % 3) words = torch::Tensor();  // one rank has none; in the first pass rank 0
      if (step == 3) words = torch::Tensor();           // no rank has any
      if (step == 4 && number == 0) words = torch::empty({0}, torch::kLong);  // no rows
      const bool use_late = step == 5 && words.defined();  // counts as dense: no rank had it in the first pass
      net->zero_grad();
      twin->zero_grad();
      for (int repeat = 0; repeat < 2; ++repeat) {  // the second pass adds to the gradients of the first
        ddp->forward(words, use_late).backward();
        twin->forward(words, use_late).backward();
        average_gradients(twin);
        expect_same_gradients(*net, *twin, fmt::format("step {}, {}", step, repeat), {1e-5, 1e-6});
      }
      if (step == 3) {
        EXPECT_FALSE(net->table->weight.grad().defined()) << "stays as it was";
      }
      if (step == 2) {
        EXPECT_TRUE(net->table->weight.grad().is_sparse() || world < 2);
      }
    }
  });
}

// The rows of the table's gradient are in the memory of the gradient that `first` gets.
struct WordsAndNumbersImpl : torch::nn::Module {
  explicit WordsAndNumbersImpl(bool sparse) {
    first = register_module("first", torch::nn::Linear(6, 8));
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 8).sparse(sparse)));
  }
  torch::Tensor forward(const torch::Tensor& numbers) {
    const torch::Tensor words = (numbers.select(1, 0).abs() * 10).to(torch::kLong).clamp_max(49);
    return (torch::tanh(first(numbers)) + table(words)).square().sum();
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Embedding table{nullptr};
};
TORCH_MODULE(WordsAndNumbers);

// PyTorch 2.15 divides such rows in place, and so `first` gets its gradient divided twice.
TEST_P(DdpModelsMulti, DividesASparseGradientAlone) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    torch::manual_seed(1);
    WordsAndNumbers net(kSparse);
    torch::manual_seed(1);
    WordsAndNumbers twin(kDense);
    DistributedDataParallel<WordsAndNumbers> ddp(net);
    const torch::Tensor numbers = random_input({7, 6}, 0);
    ddp.forward(numbers).backward();
    twin->forward(numbers).backward();
    average_gradients(twin);
    expect_same_gradients(*net, *twin, "sparse rows in the memory of another gradient", {1e-5, 1e-6});
  });
}

// 3x3, 1x1 (whose strides are ambiguous) and depthwise convolutions, with batch normalisation.
struct ConvImpl : torch::nn::Module {
  ConvImpl() {
    wide = register_module("wide", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 64, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(64));
    one = register_module("one", torch::nn::Conv2d(64, 160, 1));
    deep = register_module("deep", torch::nn::Conv2d(torch::nn::Conv2dOptions(160, 160, 3).groups(160)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(160));
    back = register_module("back", torch::nn::Conv2d(160, 64, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return back(torch::relu(norm2(deep(one(torch::relu(norm(wide(x)))))))).square().mean();
  }
  torch::nn::Conv2d wide{nullptr}, one{nullptr}, deep{nullptr}, back{nullptr};
  torch::nn::BatchNorm2d norm{nullptr}, norm2{nullptr};
};
TORCH_MODULE(Conv);

void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
}

TEST_P(DdpModelsMulti, HaveChannelsLastWeightsAndBuffers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool channels_last : {false, true}) {
      const auto make = [&] {
        Conv net;
        if (channels_last) to_channels_last(*net);
        return net;
      };
      Twins<Conv> twins(make);
      Twins<Conv> apart(make, {.broadcast_buffers = false});
      for (int step = 0; step < 4; ++step) {
        torch::Tensor x = random_input({2, 8, 8, 8}, step);
        if (channels_last) x = x.contiguous(torch::MemoryFormat::ChannelsLast);
        const auto loss = [&](Conv& net) { return net->forward(x); };
        const std::string where = fmt::format("channels last {}, step {}", channels_last, step);
        twins.step(loss, where);
        apart.step(loss, where);
        expect_equal_on_all_ranks(twins.model->buffers(), where + ": buffer");
        const auto own = apart.twin->buffers();
        for (std::size_t i = 0; i < own.size(); ++i) {
          EXPECT_TRUE(torch::equal(apart.model->buffers()[i], own[i])) << "broadcast_buffers = false changed one";
          torch::Tensor of_rank_0 = own[i].clone();
          broadcast(of_rank_0, 0);
          EXPECT_TRUE(torch::equal(twins.model->buffers()[i], of_rank_0)) << where << ": buffer " << i;
          if (get_world_size() > 1 && get_rank() > 0 && own[i].is_floating_point()) {
            EXPECT_FALSE(torch::equal(own[i], of_rank_0)) << "the test shows nothing";
          }
        }
        twins.descend();
        apart.descend();
      }
    }
  });
}

struct GraphImpl : torch::nn::Module {
  GraphImpl() {
    line = register_module("line", torch::nn::Linear(3, 2));
    edges = register_buffer("edges", torch::eye(4).to_sparse());
  }
  torch::Tensor forward(const torch::Tensor& nodes) { return torch::mm(edges, line(nodes)); }
  torch::nn::Linear line{nullptr};
  torch::Tensor edges;
};
TORCH_MODULE(Graph);

TEST_P(DdpModelsMulti, HaveSparseBuffersOfTheirOwn) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    expect_in(error_of([] { DistributedDataParallel<Graph> ddp{Graph()}; }),
              {"buffer 'edges' is Sparse", "ignored_parameters", "broadcast_buffers"});
    DistributedDataParallelOptions ignoring;
    ignoring.ignored_parameters = {"edges"};
    for (const DistributedDataParallelOptions& options :
         {ignoring, DistributedDataParallelOptions{.broadcast_buffers = false}}) {
      DistributedDataParallel<Graph> ddp(Graph(), options);
      ddp->forward(random_input({4, 3}, 0)).sum().backward();
      EXPECT_EQ(ddp.module()->line->bias.grad()[0].item<int>(), 4);
    }
  });
}

}  // namespace
}  // namespace lockstep::test
