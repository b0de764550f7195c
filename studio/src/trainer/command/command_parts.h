// The parts of the training of `lockstep train`, from its options. Functions throw std::runtime_error with the key that
// is wrong.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/c10d/cuda.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/views.h"
#include "lockstep/datasets/image_dataset.h"
#include "lockstep/nn/lr_scheduler.h"
#include "lockstep/trainer/trainer.h"
#include "trainer/command/command.h"

namespace lockstep::trainer_detail {

// What `work` returns. Its errors begin with the key that they are about.
template <typename Work>
auto with_key(const char* key, Work work) {
  try {
    return work();
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(std::string(key) + ": " + error.what());
  }
}

// For a name that its key allows, but that nothing makes: a mistake of this program.
[[noreturn]] inline void refuse_name(const char* key, const std::string& name) {
  throw std::logic_error(std::string(key) + ": " + name + " is a choice, but nothing makes it");
}

struct TrainCommandData {
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> test;  // null: no evaluation
  std::vector<std::string> classes;           // names; MNIST has digits
  std::vector<std::int64_t> labels = {};      // of the training's samples
};

TrainCommandData open_data(const TrainCommandOptions& options);
// The data of an evaluation alone: options.test, with the numbers that `classes` have there. A class that is not among
// them is an error. With `in_parts` it has exactly these classes, and is split as data.validation_share has split it in
// the training: `train` and `test` are its parts, both with the transforms of the evaluation. Else `train` is null.
TrainCommandData open_test_data(const TrainCommandOptions& options, const std::vector<std::string>& classes,
                                bool in_parts = false);

// A part of a dataset that knows the whole.
class DataPart final : public data::Subset {
 public:
  DataPart(const std::shared_ptr<const data::Dataset>& whole, std::vector<std::int64_t> indices)
      : data::Subset(whole, std::move(indices)), whole_(whole) {}
  const data::Dataset& whole() const { return *whole_; }

 private:
  std::shared_ptr<const data::Dataset> whole_;
};

// The pictures behind a dataset or a part of one; null: it has none, or they are no files.
const data::ImageDataset* pictures_of(const data::Dataset& dataset);

// The indices of both parts of data.validation_share, in ascending order. Class c of n samples gives the evaluation the
// first round(share * n) of random_split's order for seed + c. Throws std::runtime_error that names a class of which
// one part would have no sample.
struct DataParts {
  std::vector<std::int64_t> training;
  std::vector<std::int64_t> evaluation;
};
// `remedy`: for a class of one sample.
inline constexpr const char* kMorePictures = "add pictures, take the class out, or give data.test";
DataParts split_by_class(const std::vector<std::int64_t>& labels, const std::vector<std::string>& classes, double share,
                         std::int64_t seed, std::string_view remedy = kMorePictures);

// Samples of each of `classes` classes.
std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& labels, std::size_t classes);
// A line for people where the classes are far from balanced and data.class_balance is none; else empty.
std::string imbalance_note(const TrainCommandOptions& options, const TrainCommandData& data);
// The weights of data.class_balance: weights, for each of the model's classes: N / (K n) for a class of n samples, of N
// in K classes that have some. Undefined for other values.
torch::Tensor class_weights(const TrainCommandOptions& options, const TrainCommandData& data, std::int64_t num_classes);

// Makes some samples of the dataset, as the loader would. Throws its error when a picture cannot be decoded, or when
// their shapes differ.
void try_samples(const char* key, const data::Dataset& dataset);
// Pictures that this rank could not decode so far, of both datasets.
std::vector<data::CorruptFile> corrupt_files_of_rank(const TrainCommandData& data);
// Those that no rank could decode so far, by name. Collective.
std::vector<data::CorruptFile> corrupt_files(const TrainCommandData& data);

// Loads CUDA where the options want it. Before the process group is made: its default backends depend on whether there
// is CUDA.
CudaSupport find_cuda(const TrainCommandOptions& options);
torch::Device device_of(const TrainCommandOptions& options, const CudaSupport& cuda);
data::DataLoaderOptions train_loader_options(const TrainCommandOptions& options, const TrainCommandData& data,
                                             torch::Device device);
// Of an evaluation with batches of this size.
data::DataLoaderOptions test_loader_options(const TrainCommandOptions& options, torch::Device device,
                                            std::int64_t batch_size);
TrainerOptions trainer_options(const TrainCommandOptions& options, torch::Device device,
                               const std::filesystem::path& output);
// The first sample that is not left out, because its picture is corrupt (data.on_corrupt: skip). `key`: for errors.
torch::Tensor first_sample(const char* key, const data::Dataset& dataset);
// Each batch of an evaluation makes matrices of this size squared: 32 MiB here, 4 GiB for 22 thousand classes.
inline constexpr std::int64_t kMostConfusionClasses = 2048;

// Whether a training could write to this folder, for a dry run: makes and changes nothing. Does not see a full disk.
void check_output(const TrainCommandOptions& options, const std::filesystem::path& folder);

// The model for these classes and pictures like `sample`, [channels, height, width]. Tries it on the sample: scores
// for fewer classes than the data has are an error. `model` is the module, `forward` calls it.
struct TrainCommandModel {
  std::shared_ptr<torch::nn::Module> model;
  torch::nn::AnyModule forward;
  std::int64_t num_classes = 0;
  std::string weights_note;                                     // what people should know of model.weights
  torch::Tensor class_weights = {};                             // of the loss in the training; undefined: all 1
  std::vector<std::shared_ptr<torch::nn::Module>> frozen = {};  // stay in evaluation mode
};
TrainCommandModel make_model(const TrainCommandOptions& options, const TrainCommandData& data,
                             const torch::Tensor& sample);

// A line for people where what model.freeze names keeps random values; else empty.
std::string freeze_note(const TrainCommandOptions& options);
// Freezes what model.freeze names. Returns the modules among it.
std::vector<std::shared_ptr<torch::nn::Module>> freeze(torch::nn::Module& model, const std::vector<std::string>& names);

// The batch mixed with itself, as trainer.mixup_alpha and cutmix_alpha say. `number`: of the batch among those of all
// ranks in the epoch.
data::Example mixed(const data::Example& batch, const TrainCommandOptions& options, std::int64_t num_classes,
                    std::int64_t epoch, std::int64_t number);

// The loss and the scores of a batch.
StepOutput forward(TrainCommandModel& model, const TrainCommandOptions& options, const data::Example& batch);

// Throws when the model cannot take a sample of the evaluation: now, not after the first epoch.
void try_test_sample(TrainCommandModel& model, const TrainCommandOptions& options, const torch::Tensor& sample);
// Why the model cannot train on this sample alone, as a batch norm on one value for each channel; empty: it can. The
// model's buffers stay.
std::string why_not_alone(TrainCommandModel& model, const TrainCommandOptions& options, const torch::Tensor& sample);
// The error of a batch of one sample. `where`: which batch, as text.
std::runtime_error no_batch_of_one(const TrainCommandOptions& options, const std::string& where,
                                   const std::string& reason);
// Loads model.weights into the model of these classes. Returns what was left out, and why, or that the classes of the
// checkpoint were others; empty: nothing.
std::string load_weights(torch::nn::Module& model, const TrainCommandOptions& options,
                         const std::vector<std::string>& classes);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainCommandOptions& options,
                                                        const std::vector<torch::Tensor>& parameters);
// How many numbers the optimizer keeps for each number of the parameters.
std::int64_t state_factor(const TrainCommandOptions& options);
// Null: the rate stays. `steps`: of the optimizer in an epoch.
std::shared_ptr<optim::LRScheduler> make_schedule(const TrainCommandOptions& options,
                                                  torch::optim::Optimizer& optimizer, std::int64_t steps);

}  // namespace lockstep::trainer_detail
