// Code of docs/trainer.md and lockstep/trainer/*.h.
#include <lockstep/lockstep.h>
#include <lockstep/transforms/parse.h>

#include <cstdio>

namespace lockstep {
namespace {

using data::DataLoader;

int whole(const std::string& folder) {
  ProcessGroupGuard group;
  DataLoader train(data::Mnist(folder, /*train=*/true), {.batch_size = 64, .shuffle = true, .seed = 1});
  DataLoader test(data::Mnist(folder, /*train=*/false), {.batch_size = 500, .exact = true});
  torch::manual_seed(1);
  models::MnistNet net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  Trainer trainer(net, optimizer,
                  {.epochs = 10, .monitor = Monitor::kAccuracy, .checkpoint_dir = "runs/a", .resume = true});
  const TrainingResult result = trainer.fit(train, test, [&](data::Example& batch) -> StepOutput {
    const torch::Tensor scores = net->forward(batch.data);
    return {torch::nll_loss(scores, batch.target), scores};
  });
  if (group.rank() == 0)
    std::printf("%lld steps, best accuracy %.2f %%\n", static_cast<long long>(result.steps), 100 * *result.best_metric);
  return result.signal;
}

void looking_in(std::vector<double>& losses, std::vector<double>& accuracies, double& input_seconds,
                std::filesystem::path& newest) {
  TrainerOptions options{.epochs = 3};
  options.callbacks.on_step_end = [&](const StepReport& step) { input_seconds += step.input_seconds; };
  options.callbacks.on_epoch_end = [&](const EpochReport& epoch) { losses.push_back(epoch.loss); };
  options.callbacks.on_evaluation = [&](const Evaluation& found) { accuracies.push_back(found.accuracies[0]); };
  options.callbacks.on_checkpoint = [&](const CheckpointReport& saved) { newest = saved.path; };
}

}  // namespace

// lockstep/transforms/parse.h
void transforms() {
  using data::parse_transforms;
  const auto parsed = parse_transforms({"RandomResizedCrop(224, scale=(0.2, 1.0))", "RandomHorizontalFlip", "ToTensor",
                                        "Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])"});
  static_cast<void>(parsed.ok());
}

// lockstep/trainer/trainer.h
template <typename Net>
void in_the_header(lockstep::data::DataLoader& train_loader, lockstep::data::DataLoader& test_loader) {
  lockstep::ProcessGroupGuard group;
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  lockstep::Trainer trainer(net, optimizer, {.epochs = 10, .checkpoint_dir = "runs/a", .resume = true});
  trainer.fit(train_loader, test_loader, [&](lockstep::data::Example& batch) -> lockstep::StepOutput {
    const torch::Tensor scores = net->forward(batch.data);
    return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
  });
}
template void in_the_header<models::MnistNet>(data::DataLoader&, data::DataLoader&);

int use_all(const std::string& folder) {
  std::vector<double> values;
  double seconds = 0;
  std::filesystem::path path;
  transforms();
  looking_in(values, values, seconds, path);
  return whole(folder);
}

}  // namespace lockstep
