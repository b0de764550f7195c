// Scripted and traced models of Python, trained from C++ and by PyTorch's DistributedDataParallel on the same data: the
// same weights, and files that both sides read. About 41 s of a core, most of it PyTorch's.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

constexpr int kScriptedSteps = 8;
constexpr int kReplacedAt = 3;

torch::Tensor seeded(torch::IntArrayRef shape, int seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)), torch::kDouble);
}

// `kind`: a file that scripted.py has made. `by_method`: the step is the model's method training_step, not forward.
torch::jit::Module train_scripted(const std::string& path, const std::string& kind, bool by_method) {
  torch::jit::Module net = torch::jit::load(path);
  DistributedDataParallel ddp(net, {.static_graph = kind == "static"});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const int rank = get_rank();
  const auto loss_of = [&](const torch::Tensor& x, const torch::Tensor& target, bool with_extra) {
    if (kind == "traced" || kind == "exported" || kind == "replaced")
      return (ddp->forward({x}).toTensor() - target).square().mean();
    std::vector<torch::IValue> inputs{x, target, with_extra};
    const torch::IValue output =
        by_method ? ddp->get_method("training_step")(std::move(inputs)) : ddp.forward(std::move(inputs));
    EXPECT_EQ(output.toTupleRef().elements()[1].toGenericDict().at("scores").toTensor().sizes(), target.sizes());
    return output.toTupleRef().elements()[0].toTensor();
  };
  for (int step = 0; step < kScriptedSteps; ++step) {
    if (kind == "replaced" && step == kReplacedAt) net.setattr("mean", torch::full({8}, 1.0 + rank, torch::kDouble));
    optimizer.zero_grad();
    const int parts = kind == "accumulate" ? 2 : 1;
    for (int part = 0; part < parts; ++part) {
      const auto guard = ddp.no_sync(part + 1 < parts);
      const int seed = 1000 * step + 10 * rank + part;
      loss_of(seeded({4, 8}, seed), seeded({4, 3}, 5000 + seed), kind == "static" || (step + rank) % 3 == 0).backward();
    }
    optimizer.step();
  }
  return net;
}

void expect_state(const torch::nn::Module& module, const std::string& path, const std::string& where) {
  const checkpoint::StateDict ours = checkpoint::state_dict(module);
  const checkpoint::StateDict theirs = checkpoint::read_state_dict(path);
  ASSERT_EQ(ours.size(), theirs.size()) << where;
  for (const auto& entry : ours) {
    EXPECT_TRUE(torch::allclose(*entry, theirs[entry.key()], 1e-9, 1e-12)) << where << ": " << entry.key();
  }
}

void train_kind(const test::SharedScratchFolder& folder, const std::string& kind, int world, bool by_method) {
  const std::string where = fmt::format("{}, {} ranks{}", kind, world, by_method ? ", by a method" : "");
  torch::jit::Module net = train_scripted(folder.path(kind + ".pt"), kind, by_method);
  const auto model = as_module(net);
  const std::string theirs = folder.path(fmt::format("python.{}.{}.pt", kind, world));
  expect_state(*model, theirs, where);
  torch::jit::Module fresh = torch::jit::load(folder.path(kind + ".pt"));
  const auto other = as_module(fresh);
  checkpoint::load_state_dict(*other, checkpoint::read_state_dict(theirs));
  expect_state(*other, theirs, where + ", loaded");
  if (get_rank() != 0) return;
  checkpoint::write_state_dict(folder.path(fmt::format("state.{}.{}.pt", kind, world)), checkpoint::state_dict(*model));
  net.save(folder.path(fmt::format("module.{}.{}.pt", kind, world)));
}

TEST(ScriptedParity, TrainsAsInPythonAndGoesBack) {
  const test::SharedScratchFolder folder;
  const std::string path = folder.path("");
  const auto run_judge = [&](const std::vector<std::string>& arguments) {
    if (::getenv("RANK") == nullptr) test::run_python("scripted.py", arguments);
  };
  run_judge({"make", path});
  run_judge({"train", path, std::to_string(kScriptedSteps), "1", "2", "3"});
  for (const int world : {1, 2, 3}) {
    test::run_processes(world, [&](int) {
      torch::set_num_threads(1);
      const ProcessGroupGuard group;
      for (const std::string kind :
           {"forward", "static", "accumulate", "frozen_statistics", "traced", "exported", "replaced"}) {
        train_kind(folder, kind, world, /*by_method=*/false);
      }
      train_kind(folder, "forward", world, /*by_method=*/true);
    });
  }
  run_judge({"check", path, "1", "2", "3"});
}

TEST(ScriptedParity, KeepsACheckpointAndAveragesAndRefusesFrozenModels) {
  const test::SharedScratchFolder folder;
  if (::getenv("RANK") == nullptr) test::run_python("scripted.py", {"make", folder.path("")});
  test::run_processes(2, [&](int rank) {
    torch::set_num_threads(1);
    const ProcessGroupGuard group;
    torch::jit::Module net = torch::jit::load(folder.path("forward.pt"));
    const auto model = as_module(net);
    EXPECT_TRUE(model->named_parameters()["encode.weight"].is_same(model->named_parameters()["decode.weight"]));
    model->eval();
    EXPECT_FALSE(net.attr("norm").toModule().is_training());
    model->train();
    EXPECT_TRUE(net.is_training());

    ExponentialMovingAverage average(*model, {.decay = 0.5});
    average.update();
    checkpoint::Checkpoint state;
    state.add_model(*model);
    const checkpoint::Checkpoint kept = state.clone();
    const torch::Tensor before = net.attr("head").toModule().attr("0").toModule().attr("bias").toTensor().clone();
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : model->parameters()) parameter.add_(1);
    }
    {
      const auto guard = average.swap_in();
      EXPECT_TRUE(torch::equal(model->named_parameters()["head.0.bias"], before));
    }
    kept.restore_model(*model);
    EXPECT_TRUE(torch::equal(net.attr("head").toModule().attr("0").toModule().attr("bias").toTensor(), before));

    // One rank alone has the wrong file: an error on both.
    const std::string wrong = folder.path(rank == 1 ? "frozen.pt" : "traced.pt");
    try {
      DistributedDataParallel refused(torch::jit::load(wrong));
      FAIL();
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("was frozen or optimised for inference"), std::string::npos)
          << error.what();
    }
    EXPECT_THROW(as_module(torch::jit::load(folder.path("optimised.pt"))), c10::ValueError);
  });
}

}  // namespace
}  // namespace lockstep
