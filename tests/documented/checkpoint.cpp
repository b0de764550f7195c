// Code of docs/checkpoints.md, docs/using_models.md and of the headers of checkpoint, as it stands there.
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/image/decode.h"
#include "lockstep/models/resnet.h"
#include "lockstep/transforms/compose.h"

namespace lockstep {
namespace {

using data::DataLoader;

[[maybe_unused]] void folder() {
  checkpoint::CheckpointManager manager("runs/a", {.keep_last = 3});
}

[[maybe_unused]] void saving(const ProcessGroupGuard& group, checkpoint::CheckpointManager& manager,
                             torch::nn::Linear& net, torch::optim::SGD& optimizer, torch::optim::StepLR& scheduler,
                             DataLoader& loader, double best_accuracy, std::int64_t step, double accuracy) {
  const auto generators = gather_object(checkpoint::generator_state(), 0);
  if (group.rank() == 0) {
    checkpoint::Checkpoint state;
    state.add_model(*net);
    state.add_optimizer(optimizer);
    state.add_scheduler(scheduler);
    state.add_generators(generators);
    state.set("best", best_accuracy);
    state.set("sampler", to_string(loader.state()));
    manager.save(step, state, accuracy);
  }
}

[[maybe_unused]] void going_on(checkpoint::CheckpointManager& manager, torch::nn::Linear& net,
                               torch::optim::SGD& optimizer, torch::optim::StepLR& scheduler, DataLoader& loader,
                               std::int64_t& epoch, double& best_accuracy) {
  if (auto state = manager.load_latest()) {
    state->restore_model(*net);
    state->restore_optimizer(optimizer);
    state->restore_scheduler(scheduler);
    state->restore_generator();
    loader.load_state(data::sampler_state_from_string(state->get_text("sampler")));
    epoch = loader.epoch();
    best_accuracy = state->get_double("best");
  }
}

[[maybe_unused]] void same_step(checkpoint::CheckpointManager& manager) {
  auto state = manager.load_latest([](const auto& steps) { return all_gather_object(steps); });
}

[[maybe_unused]] void asynchronous(std::int64_t step, const checkpoint::Checkpoint& state, double validation_loss) {
  checkpoint::CheckpointManager manager(
      "runs/a", {.best = checkpoint::CheckpointManagerOptions::Best::kLowestMetric, .asynchronous = true});
  manager.save(step, state, validation_loss);
  manager.wait();
  auto best = manager.load_best();
}

// --- docs/interchange.md

[[maybe_unused]] void weights() {
  models::ResNet net = models::resnet18();
  checkpoint::load_state_dict(*net, checkpoint::read_state_dict("resnet18.pt"));
  checkpoint::write_state_dict("trained.safetensors", checkpoint::state_dict(*net));
  checkpoint::write_state_dict("trained.pt", checkpoint::state_dict(*net));
}

[[maybe_unused]] void not_strict(models::ResNet& net) {
  const checkpoint::IncompatibleKeys left_out =
      checkpoint::load_state_dict(*net, checkpoint::read_state_dict("resnet18.pt"), /*strict=*/false);
  for (const std::string& what : left_out.mismatched) std::cout << what << '\n';
}

[[maybe_unused]] void to_python(models::ResNet& net, torch::optim::SGD& optimizer, std::int64_t epoch) {
  c10::impl::GenericDict run(c10::AnyType::get(), c10::AnyType::get());
  run.insert("model", checkpoint::to_ivalue(checkpoint::state_dict(*net)));
  run.insert("optimizer", checkpoint::state_dict(optimizer));
  run.insert("epoch", epoch);
  checkpoint::write_torch_file("run.pt", run);
}

[[maybe_unused]] void from_python(models::ResNet& net, torch::optim::SGD& optimizer, std::int64_t& epoch) {
  const auto saved = checkpoint::read_torch_file("run.pt").toGenericDict();
  checkpoint::load_state_dict(*net, checkpoint::to_state_dict(saved.at("model")));
  checkpoint::load_state_dict(optimizer, saved.at("optimizer"));
  epoch = saved.at("epoch").toInt();
}

}  // namespace

namespace checkpoint {
namespace {

[[maybe_unused]] void state_dict_header(models::ResNet& net) {
  auto missing = checkpoint::load_state_dict(*net, checkpoint::read_state_dict("resnet18.pt"));
  checkpoint::write_state_dict("trained.safetensors", checkpoint::state_dict(*net));
}

[[maybe_unused]] void checkpoint_header(CheckpointManager& manager, torch::nn::Linear& net,
                                        torch::optim::SGD& optimizer, torch::optim::StepLR& scheduler,
                                        data::DataLoader& loader, std::int64_t epoch, std::int64_t step,
                                        double accuracy) {
  const auto generators = gather_object(checkpoint::generator_state(), 0);
  Checkpoint state;
  state.add_model(*net);
  state.add_optimizer(optimizer);
  state.add_scheduler(scheduler);
  state.add_generators(generators);
  state.set("epoch", epoch);
  state.set("sampler", to_string(loader.state()));
  manager.save(step, state, accuracy);
}

[[maybe_unused]] void checkpoint_header_back(CheckpointManager& manager, torch::nn::Linear& net,
                                             torch::optim::SGD& optimizer, torch::optim::StepLR& scheduler,
                                             std::int64_t& epoch) {
  if (auto state = manager.load_latest()) {
    state->restore_model(*net);
    state->restore_optimizer(optimizer);
    state->restore_scheduler(scheduler);
    state->restore_generator();
    epoch = state->get_int("epoch") + 1;
  }
}

[[maybe_unused]] torch::Tensor trained_model() {
  const std::string file = "runs/flowers/model.safetensors";
  const std::string classes = checkpoint::read_tensor_file_metadata(file).at("lockstep.classes");
  models::ResNet net = models::resnet18({.num_classes = std::count(classes.begin(), classes.end(), '\n')});
  checkpoint::load_state_dict(*net, checkpoint::read_state_dict(file));
  net->eval();
  const data::Compose prepare({data::Resize{256}, data::CenterCrop{224}, data::ToTensor{},
                               data::Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}});
  const data::Image picture = data::value_or_throw(data::decode_image("rose.jpg"));
  torch::Tensor batch = torch::empty({1, 3, 224, 224});
  prepare.apply(prepare.draw(picture.size(), {}), picture, batch.data_ptr());
  const torch::NoGradGuard no_grad;
  const torch::Tensor probabilities = net->forward(batch).softmax(1);
  return probabilities;
}

}  // namespace
}  // namespace checkpoint
}  // namespace lockstep
