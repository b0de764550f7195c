// `lockstep predict`: pictures through a trained model, batch by batch.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/arithmetic.h"
#include "base/printable.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/image/folder_index.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "lockstep/nn/fast_convolution.h"
#include "lockstep/nn/memory_format.h"
#include "lockstep/nn/mixed_precision.h"
#include "lockstep/transforms/parse.h"
#include "options/command.h"
#include "trainer/command/use_of_model.h"
#include "trainer/command/use_of_model_options.h"

namespace lockstep::trainer_detail {
namespace {

struct PictureBatch {
  torch::Tensor pictures;             // [n, ...]: those that could be read
  std::vector<std::int64_t> indices;  // of all
  std::vector<std::string> reasons;   // why one could not be read; empty: it is in `pictures`
};

// Pictures without classes. One that cannot be read leaves its place in the batch, with the reason: ImageDataset would
// take another one, or end.
class PictureList final : public data::DatasetOf<data::Example, PictureBatch> {
 public:
  // `input`: the shape of a sample that the model takes.
  PictureList(std::vector<std::string> paths, data::Compose transform, const std::vector<std::int64_t>& input)
      : paths_(std::move(paths)), transform_(std::move(transform)), input_(input) {}

  std::int64_t size() const override { return std::ssize(paths_); }
  const std::string& path(std::int64_t index) const { return paths_[static_cast<std::size_t>(index)]; }
  data::Example get(std::int64_t index) const override { return {get_batch({&index, 1}).pictures[0], {}}; }
  PictureBatch get_batch(std::span<const std::int64_t> indices,
                         const data::SampleContext& context = {}) const override {
    PictureBatch batch;
    batch.indices.assign(indices.begin(), indices.end());
    std::vector<std::int64_t> sizes{std::ssize(indices)};
    sizes.insert(sizes.end(), input_.begin(), input_.end());
    const torch::Tensor room = context.empty(sizes, torch::kFloat);
    std::int64_t read = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const data::SampleKey key{context.seed, context.epoch, context.key(i, indices[i])};
      batch.reasons.push_back(add(path(indices[i]), key, room[read].data_ptr()));
      read += batch.reasons.back().empty() ? 1 : 0;
    }
    batch.pictures = room.narrow(0, 0, read);
    return batch;
  }

 private:
  // Writes the sample to `out`; returns why it cannot.
  std::string add(const std::string& path, const data::SampleKey& key, void* out) const {
    thread_local std::vector<std::uint8_t> bytes;
    if (const Status status = data::read_image_file(path, bytes); !status.ok()) return without_path(status, path);
    const Result<data::ImageSize> size = data::image_size(bytes, {});
    if (!size.ok()) return size.status().message();
    try {
      const data::SamplePlan plan = transform_.draw(size.value(), key);
      const data::SampleShape shape = data::Compose::shape_of(plan);
      const std::vector<std::int64_t> found{shape.channels, shape.height, shape.width};
      if (found != input_ || !shape.is_float) {
        return fmt::format("the transforms make {} of it, and the training had {}", c10::str(at::IntArrayRef(found)),
                           c10::str(at::IntArrayRef(input_)));
      }
      transform_.apply(plan, bytes, {}, out);
    } catch (const data::DataError& error) {
      return error.what();
    }
    return "";
  }

  static std::string without_path(const Status& status, const std::string& path) {
    const std::string begin = printable(path) + ": ";
    const std::string& message = status.message();
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  }

  std::vector<std::string> paths_;
  data::Compose transform_;
  std::vector<std::int64_t> input_;
};

// The rows of pictures, as text.
class Rows {
 public:
  Rows(const PredictCommandOptions& options, const std::vector<std::string>& classes)
      : options_(options), classes_(classes) {}

  std::string head() const {
    if (options_.format == ResultFormat::kJson) return "[";
    std::string line = "picture";
    for (std::int64_t k = 1; k <= options_.top_k; ++k)
      line += k == 1 ? ",class,probability" : fmt::format(",class_{},probability_{}", k, k);
    return line + ",error\n";
  }
  std::string tail() const { return options_.format == ResultFormat::kJson ? "\n]\n" : ""; }
  // Between the head and the first row, and between rows.
  std::string before(bool is_first) const {
    return options_.format != ResultFormat::kJson ? "" : is_first ? "\n" : ",\n";
  }

  std::string good(const std::string& path, const std::int64_t* classes, const float* probabilities) const {
    if (options_.format == ResultFormat::kJson) {
      nlohmann::ordered_json json{{"picture", path}, {"predictions", nlohmann::ordered_json::array()}};
      for (std::int64_t k = 0; k < options_.top_k; ++k) {
        json["predictions"].push_back({{"class", class_name(classes_, classes[k])},
                                       {"probability", std::stod(probability_text(probabilities[k]))}});
      }
      return text_of(json);
    }
    std::string line = csv_field(path);
    for (std::int64_t k = 0; k < options_.top_k; ++k)
      line += fmt::format(",{},{}", csv_field(class_name(classes_, classes[k])), probability_text(probabilities[k]));
    return line + ",\n";
  }
  std::string bad(const std::string& path, const std::string& reason) const {
    if (options_.format == ResultFormat::kJson) return text_of({{"picture", path}, {"error", reason}});
    const std::string empty(static_cast<std::size_t>(2 * options_.top_k), ',');
    return csv_field(path) + empty + "," + csv_field(reason) + "\n";
  }

 private:
  // Digits behind the sixth depend on the batch in which the picture lies.
  static std::string probability_text(float probability) { return fmt::format("{:.6g}", probability); }
  static std::string text_of(const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
  }

  const PredictCommandOptions& options_;
  const std::vector<std::string>& classes_;
};

struct BatchRows {
  std::vector<std::int64_t> indices;
  std::vector<std::string> rows;
  std::int64_t bad = 0;
};

class Predictor {
 public:
  Predictor(TrainCommandModel& model, const TrainCommandOptions& training, torch::Device device, const Rows& rows,
            std::int64_t top_k)
      : model_(model), training_(training), device_(device), rows_(rows), top_k_(top_k) {
    model_.model->to(device);
    if (training.channels_last) to_memory_format(*model_.model, torch::MemoryFormat::ChannelsLast);
    model_.model->eval();
  }

  BatchRows operator()(const PictureList& list, const PictureBatch& batch) {
    const torch::NoGradGuard no_grad;
    torch::Tensor classes;
    torch::Tensor probabilities;
    torch::Tensor broken;
    if (batch.pictures.size(0) > 0) {
      const torch::Tensor scores = scores_of(batch.pictures);
      // Of equal scores the lower class comes first, as in the evaluation.
      classes = std::get<1>(scores.sort(/*stable=*/true, 1, /*descending=*/true)).narrow(1, 0, top_k_).contiguous();
      probabilities = scores.softmax(1).gather(1, classes).contiguous();
      broken = scores.softmax(1).isnan().any(1);
    }
    BatchRows made;
    made.indices = batch.indices;
    std::int64_t row = 0;
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      const std::string& path = list.path(batch.indices[i]);
      std::string reason = batch.reasons[i];
      const std::int64_t at = reason.empty() ? row++ : 0;
      if (reason.empty() && broken[at].item<bool>()) reason = "the model's scores are NaN or infinite";
      made.bad += reason.empty() ? 0 : 1;
      made.rows.push_back(reason.empty() ? rows_.good(path, classes.const_data_ptr<std::int64_t>() + at * top_k_,
                                                      probabilities.const_data_ptr<float>() + at * top_k_)
                                         : rows_.bad(path, reason));
    }
    return made;
  }

 private:
  torch::Tensor scores_of(const torch::Tensor& pictures) {
    data::Example batch{pictures, torch::zeros({pictures.size(0)}, torch::kLong)};
    prepare(batch, {device_, training_.channels_last});
    std::optional<Autocast> autocast;
    if (training_.precision == TrainCommandPrecision::kBFloat16) autocast.emplace(device_.type(), torch::kBFloat16);
    if (training_.precision == TrainCommandPrecision::kFloat16) autocast.emplace(device_.type(), torch::kHalf);
    return model_.forward.forward(batch.data).to(torch::kCPU, torch::kFloat);
  }

  TrainCommandModel& model_;
  const TrainCommandOptions& training_;
  torch::Device device_;
  const Rows& rows_;
  std::int64_t top_k_;
};

// The files, the pictures of the folders, and the lines of the list.
Result<std::vector<std::string>> paths_of(const PredictCommandOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& word : options.pictures) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(word, ignored)) {
      paths.push_back(word);
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<std::string> found, data::list_pictures(word));
    if (found.empty()) return Status(ErrorCode::kNotFound, fmt::format("{} has no picture", printable(word)));
    std::move(found.begin(), found.end(), std::back_inserter(paths));
  }
  if (options.list.empty() && paths.empty()) {
    return Status(ErrorCode::kInvalidArgument, "expected pictures or a folder behind the model, or --list FILE");
  }
  if (options.list.empty()) return paths;
  std::ifstream list(options.list);
  for (std::string line; std::getline(list, line);) {
    if (line.ends_with('\r')) line.pop_back();  // of a list from Windows
    if (!line.empty()) paths.push_back(line);
  }
  if (!list.eof()) return Status::from_errno(fmt::format("--list: cannot read {}", printable(options.list)), errno);
  if (paths.empty()) {
    return Status(ErrorCode::kNotFound, fmt::format("--list: {} has no line", printable(options.list)));
  }
  return paths;
}

Status check_list(const PredictCommandOptions& options) {
  std::error_code ignored;
  if (get_world_size() == 1 || !std::filesystem::exists(options.list, ignored) ||
      std::filesystem::is_regular_file(options.list, ignored)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          fmt::format("--list: {} is no regular file, so {} processes cannot each read all of it; give a file, or use "
                      "one process",
                      printable(options.list), get_world_size())};
}

data::Compose prediction_transforms(const TrainCommandOptions& training) {
  auto transforms = data::parse_transforms(training.test_transforms);
  if (!transforms.ok()) throw std::runtime_error("data.test_transforms: " + transforms.status().message());
  const auto is_drawn = [](const data::Transform& transform) {
    using namespace data;  // NOLINT(google-build-using-namespace)
    return std::visit(
        []<typename T>(const T& /*one*/) {
          return !(std::is_same_v<T, Resize> || std::is_same_v<T, CenterCrop> || std::is_same_v<T, Pad> ||
                   std::is_same_v<T, Grayscale> || std::is_same_v<T, ToTensor> ||
                   std::is_same_v<T, ConvertImageDtype> || std::is_same_v<T, PILToTensor> ||
                   std::is_same_v<T, Normalize>);
        },
        transform);
  };
  if (get_rank() == 0 && std::any_of(transforms->begin(), transforms->end(), is_drawn)) {
    log::warning(
        "the transforms of the evaluation draw at random, so a prediction depends on the picture's place among the "
        "others; give the training data.test_transforms, or this command --test-transforms");
  }
  return data::Compose(std::move(transforms).value());
}

using PictureLoader = data::DataLoaderOf<data::Example, PictureBatch>;

// Writes the rows of all ranks on rank 0, which has `out`, in the order of the list. Returns how many pictures have no
// prediction. Rank r has the pictures r, r + W, ... of W ranks, so the batches of all ranks together are a part of the
// list. Collective.
std::int64_t write_rows(const PictureList& list, PictureLoader& loader, Predictor& predictor, const Rows& rows,
                        std::optional<ResultFile>& out) {
  const std::int64_t rounds = ceil_divide(list.size(), get_world_size() * loader.batch_size());
  auto batch = loader.begin();
  std::int64_t bad = 0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    BatchRows mine;
    if (batch != std::default_sentinel) {
      mine = predictor(list, *batch);
      ++batch;
    }
    const auto indices = gather_object(mine.indices, 0);
    const auto texts = gather_object(mine.rows, 0);
    for (const std::int64_t number : gather_object(mine.bad, 0)) bad += number;
    if (!out) continue;
    std::map<std::int64_t, const std::string*> ordered;
    for (std::size_t rank = 0; rank < indices.size(); ++rank) {
      for (std::size_t i = 0; i < indices[rank].size(); ++i) ordered[indices[rank][i]] = &texts[rank][i];
    }
    for (const auto& [index, text] : ordered) out->write(rows.before(index == 0) + *text);
  }
  broadcast_object(bad, 0);
  return bad;
}

Status check_prediction(const TrainedModel& file, const TrainCommandOptions& training) {
  LOCKSTEP_RETURN_IF_ERROR(check_use_of_model(training));
  if (training.format != DataFormat::kMnist) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} was trained on the files of MNIST, not on pictures: `lockstep evaluate` alone takes it",
                      printable(file.path))};
}

int predict(PredictCommandOptions& o, options::Table& table) {
  const TrainedModel file = open_model(o.model, o.training, table);
  const TrainCommandOptions& training = o.training;
  if (const Status wrong = check_prediction(file, training); !wrong.ok()) return options::fail(wrong);
  const CudaSupport cuda = find_cuda(training);
  const ProcessGroupGuard group;
  if (const Status wrong = check_list(o); !wrong.ok()) return options::fail(wrong);
  const Result<std::vector<std::string>> paths = paths_of(o);
  if (!paths.ok()) return options::fail(paths.status());
  for (const auto& inputs : {paths.value(), std::vector<std::string>{file.path, o.list}}) {
    if (const Status wrong = check_output_path(o.output, inputs); !wrong.ok()) return options::fail(wrong);
  }
  const torch::Device device = device_of(training, cuda);
  TrainCommandModel model = make_trained_model(file, training);
  if (const Status wrong = check_top_k(o.top_k, model.num_classes); !wrong.ok()) return options::fail(wrong);
  const auto list = std::make_shared<const PictureList>(paths.value(), prediction_transforms(training), file.input);
  const data::DataLoaderOptions settings = test_loader_options(training, torch::kCPU, training.test_batch_size);
  PictureLoader loader(list, {.batch_size = settings.batch_size,
                              .seed = settings.seed,
                              .exact = true,
                              .num_workers = settings.num_workers,
                              .machine_workers = settings.machine_workers});
  use_fast_batch_norm();
  use_fast_convolution();
  const Rows rows(o, file.classes);
  Predictor predictor(model, training, device, rows, o.top_k);
  std::optional<ResultFile> out;
  if (get_rank() == 0) {
    out.emplace(o.output);
    out->write(rows.head());
  }
  const std::int64_t bad = write_rows(*list, loader, predictor, rows, out);
  if (out) {
    out->write(rows.tail());
    out->close();
  }
  // `lockstep run` ends rank 0 once another rank has ended with an error, so none ends before the file is complete.
  barrier();
  if (!out || bad == 0) return EXIT_SUCCESS;
  std::fprintf(stderr, "lockstep: %lld of %lld pictures have no prediction; their rows say why\n",
               static_cast<long long>(bad), static_cast<long long>(list->size()));
  return EXIT_FAILURE;
}

}  // namespace

void declare(PredictCommandOptions& o, options::Table& table) {
  auto top = table.section("", "");
  top.key("MODEL", o.model, "The file model.safetensors of a training, or the folder of its run").word();
  top.key("PICTURES", o.pictures, "Files, and folders with all pictures in them").optional_words();
  top.key("list", o.list, "A file with the path of a picture in each line, behind the other pictures");
  top.key("top_k", o.top_k, "How many classes of each picture, the best first").at_least(1);
  top.key("format", o.format, {{"csv", ResultFormat::kCsv}, {"json", ResultFormat::kJson}},
          "csv, or an array with a line for each picture");
  top.key("output", o.output, "The file to write, which appears when it is complete. Empty: standard output");
  declare_use_of_model(o.training, table, /*has_classes=*/false);
}

int run_predict_command(PredictCommandOptions& options, options::Table& table) {
  return with_plain_errors([&] { return predict(options, table); });
}

}  // namespace lockstep::trainer_detail
