// Trains a model that Python has exported with torch.jit.script, and saves it for Python:
//   python model.py make net.pt
//   lockstep run --nproc-per-node 2 ./scripted_train net.pt trained
//   python model.py check net.pt trained
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/lockstep.h>
#include <torch/script.h>

#include <iostream>

namespace {

// Points of the plane. Class 1: both coordinates have the same sign.
std::pair<torch::Tensor, torch::Tensor> make_points(std::int64_t count) {
  const torch::Tensor points = torch::randn({count, 2}, at::detail::createCPUGenerator(5));
  return {points, (points.prod(1) > 0).to(torch::kLong)};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: scripted_train MODEL TRAINED\n";
    return 2;
  }
  const lockstep::ProcessGroupGuard group;
  torch::jit::Module net = torch::jit::load(argv[1]);
  const auto model = lockstep::as_module(net);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.02));
  const auto [points, labels] = make_points(512);
  const lockstep::data::TensorDataset dataset(points, labels);
  lockstep::data::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true});
  lockstep::data::DataLoader evaluation(dataset, {.batch_size = 32});
  lockstep::Trainer trainer(net, optimizer, {.epochs = 12, .clip_grad_norm = 5, .ema_decay = 0.9});
  trainer.fit(loader, evaluation, [&](lockstep::data::Example& batch) -> lockstep::StepOutput {
    const torch::IValue output = net.get_method("training_step")({batch.data, batch.target});
    return {output.toTupleRef().elements()[0].toTensor(), output.toTupleRef().elements()[1].toTensor()};
  });
  if (group.rank() == 0) {
    net.eval();
    const torch::Tensor right = net.forward({points}).toTensor().argmax(1) == labels;
    std::cout << "Rank 0: " << (right.sum().item<std::int64_t>() > 480 ? "has learned it" : "has not learned it")
              << std::endl;
    const std::string trained = argv[2];
    net.save(trained + ".pt");
    lockstep::checkpoint::write_state_dict(trained + ".state.pt", lockstep::checkpoint::state_dict(*model));
  }
  return 0;
}
