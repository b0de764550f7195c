// Goes on with a training that Python has begun, and hands it back.
//
//   python begin.py save run.pt && ./interchange_train run.pt run.pt && python begin.py load run.pt
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"

namespace checkpoint = lockstep::checkpoint;

namespace {

void train(const char* source, const char* target) {
  // Names and order of the layers are those of begin.py.
  torch::nn::Sequential net(torch::nn::Linear(10, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));

  const auto saved = checkpoint::read_torch_file(source).toGenericDict();
  checkpoint::load_state_dict(*net, checkpoint::to_state_dict(saved.at("model")));
  checkpoint::load_state_dict(optimizer, saved.at("optimizer"));
  std::int64_t step = saved.at("step").toInt();

  double loss_value = 0;
  for (const std::int64_t end = step + 20; step < end; ++step) {
    const auto inputs = torch::sin(torch::arange(640, torch::kFloat) * static_cast<double>(step + 1)).view({64, 10});
    const auto loss = torch::mse_loss(net->forward(inputs), inputs.sum(1, /*keepdim=*/true));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  std::printf("C++: loss %.4f after %lld steps\n", loss_value, static_cast<long long>(step));

  c10::impl::GenericDict run(c10::AnyType::get(), c10::AnyType::get());
  run.insert("model", checkpoint::to_ivalue(checkpoint::state_dict(*net)));
  run.insert("optimizer", checkpoint::state_dict(optimizer));
  run.insert("step", step);
  checkpoint::write_torch_file(target, run);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: interchange_train FROM TO\n");
    return 2;
  }
  try {
    train(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interchange_train: %s\n", error.what());
    return 1;
  }
}
