// What the ranks agree on: before parameters are shared, and at the first meeting of each step.
#include <ATen/Dispatch.h>
#include <ATen/NumericUtils.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <typeinfo>
#include <utility>

#include "base/arithmetic.h"
#include "base/fnv1a.h"
#include "c10d/backend/group_errors.h"
#include "c10d/world/engine_of.h"
#include "c10d/world/own_group.h"
#include "nn/ddp/join_of_thread.h"
#include "nn/same_memory.h"
#include "nn/same_on_all_ranks.h"
#include "shared_stepper_impl.h"
#include "shm/memory_limits.h"

namespace lockstep::nn_detail {
namespace {

using Groups = SharedStepper::Groups;
// Elements of a tile: the part of a parameter that is stepped at a time. Its values, state and gradient stay in a
// core's second-level cache. A multiple of every vector's length, so that the kernels of LibTorch compute the same bits
// as for the whole parameter; and less than what they divide among threads.
constexpr std::int64_t kTileElements = 16384;
constexpr const char* kNeeds = "SharedStep needs the same parameters, gradients and options";

std::string text_of(const torch::optim::OptimizerOptions& options) {
  std::string text;
  for (const auto& [name, value] : numbers_of(options)) text += fmt::format(" {} {}", name, value);
  return text;
}

void check_engine(const ProcessGroup& group) {
  const ProcessGroup whole = group ? group : default_group();
  ProcessGroupLockstep* const engine = engine_of(whole, torch::kCPU);
  TORCH_CHECK_VALUE(engine != nullptr, "SharedStep: the group's backend for the CPU is ",
                    whole->getBackend(torch::kCPU)->getBackendName(),
                    "; expected lockstep, whose ranks share memory. ZeroRedundancyOptimizer works with every backend");
  TORCH_CHECK_VALUE(
      engine->shares_memory(),
      "SharedStep: the ranks of the group share no memory: they are on several machines, or belong to several "
      "users; expected all of them on one machine, as one user. "
      "ZeroRedundancyOptimizer works between machines, or pass a group of the ranks of each machine");
}

// As many bytes as will be used: values, and the state that these options make. The file has place for more state.
void check_memory(const Groups& groups, const torch::optim::OptimizerOptions& defaults) {
  std::size_t used = 0;
  std::size_t file = 0;
  for (const auto& group : groups) {
    const auto state = state_tensors(group.has_options() ? group.options() : defaults);
    const auto tensors = 1 + static_cast<std::size_t>(std::count(state.begin(), state.end(), true));
    for (const torch::Tensor& parameter : group.params()) {
      used += parameter.nbytes() * tensors;
      file += parameter.nbytes() * (1 + kStateTensors);
    }
  }
  TORCH_CHECK_VALUE(used <= comm::usable_memory(), "SharedStep: parameters and state take ", used,
                    " bytes of shared memory, and this machine or container has ", comm::usable_memory(),
                    " bytes (physical memory, or memory.max of the control group)");
  TORCH_CHECK_VALUE(file <= comm::largest_file(), "SharedStep: parameters and state are a file in memory of ", file,
                    " bytes, and files may have ", comm::largest_file(), " bytes here (ulimit -f)");
}

// Where the numbers of elements before each tile, over all parameters, divide the elements evenly.
int owner_of(std::int64_t before, std::int64_t all, int ranks) {
  return static_cast<int>(std::min<std::int64_t>(ranks - 1, before * ranks / std::max<std::int64_t>(all, 1)));
}

// Each step reads the page map of the view, which takes 0.7 ms for 46 MB of small pages, and 0.06 ms otherwise. Huge
// pages are memory in use, so a state that a part of the parameters has (check_memory) stays on small ones. `offset`:
// of the view.
void use_huge_pages(const comm::SharedBlock& block, std::size_t offset, const SharedParameters& parameters,
                    const Groups& groups) {
  const auto all_have = [&](std::size_t which) {
    return which == 0 || std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
             return group.params().empty() || state_tensors(group.options())[which - 1];
           });
  };
  const SharedParameter& first = parameters[0];
  const SharedParameter& last = parameters[parameters.size() - 1];
  std::size_t end = 0;
  for (std::size_t begin = 0; begin <= kStateTensors; begin = end + 1) {
    end = begin;
    while (end <= kStateTensors && all_have(end)) ++end;
    if (end == begin) continue;
    const std::size_t from = first.places[begin];
    block.use_huge_pages(offset + from, last.places[end - 1] + last.bytes - from);
  }
}

// A word for the bits of a few elements: the first, the middle, the last, and some that change with each step, so that
// elements that are mostly zero (the rows of an embedding) are met in time. Every NaN counts as the same.
template <typename T>
std::uint64_t hash_of_samples(const torch::Tensor& flat, std::uint64_t step) {
  constexpr std::uint64_t kMoving = 13;
  constexpr std::uint64_t kScatter = 0x9e3779b97f4a7c15;  // odd, and without a pattern
  const T* const data = flat.const_data_ptr<T>();
  const auto size = static_cast<std::uint64_t>(flat.numel());
  std::uint64_t hash = 0;
  const auto add = [&](std::uint64_t index) {
    std::array<std::uint64_t, 2> words{};
    static_assert(sizeof(T) <= sizeof(words));
    if (at::_isnan(data[index])) {
      words = {1, 1};
    } else {
      std::memcpy(words.data(), data + index, sizeof(T));
    }
    for (const std::uint64_t word : words) hash = mixed(hash, word);
  };
  for (const std::uint64_t index : {std::uint64_t{0}, size / 2, size - 1}) add(index);
  for (std::uint64_t i = 0; i < kMoving; ++i) add((step * kMoving + i) * kScatter % size);
  return hash;
}

}  // namespace

const Groups& SharedStepper::agree(const Groups& groups, const torch::optim::OptimizerOptions& defaults,
                                   const Factory& factory, const SharedStepOptions& options) {
  const auto lines = [&] {
    check_engine(options.process_group);
    TORCH_CHECK_VALUE(options.max_norm >= 0 && (options.max_norm == 0 || options.average_gradients),
                      "SharedStep: max_norm is ", options.max_norm,
                      "; expected 0, or a positive number together with average_gradients. Without average_gradients, "
                      "clip_grad_norm_ before step() clips");
    std::string text = SharedParameters::lines(groups);
    for (const auto& group : groups)
      text += fmt::format("options:{}\n", text_of(group.has_options() ? group.options() : defaults));
    check_memory(groups, defaults);
    const auto trial = factory(Groups(), defaults);  // throws for options that the optimizer refuses
    const torch::optim::Optimizer& kind = *trial;
    return text + fmt::format("{}, fused {}, own kernels {}, average_gradients {}, max_norm {}\n",
                              c10::demangle(typeid(kind).name()), options.fused,
                              options.fused && own_step_kernel() != nullptr, options.average_gradients,
                              options.max_norm);
  };
  check_same_lines(DeviceBackend::for_host_data(options.process_group, torch::kCPU), lines, kNeeds);
  return groups;
}

SharedStepper::Impl::Impl(torch::optim::Optimizer& optimizer, Factory factory, const SharedStepOptions& options)
    : optimizer_(optimizer),
      factory_(std::move(factory)),
      options_(options),
      group_(own_group(options.process_group, torch::kCPU, "SharedStep")),
      backend_(group_, torch::kCPU),
      kernel_(options.fused ? own_step_kernel() : nullptr) {
  share_parameters();
}

std::vector<SharedStepper::Impl::Tile> SharedStepper::Impl::make_tiles(const SharedParameters& parameters,
                                                                       std::size_t& undo_bytes) const {
  std::vector<Tile> tiles;
  undo_bytes = sizeof(StepUndo);
  std::int64_t all = 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) all += parameters[i].elements;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t element = c10::elementSize(parameters[i].dtype);
    const bool has_kernel = kernel_ != nullptr && parameters[i].dtype == torch::kFloat;
    for (std::int64_t begin = 0; begin < parameters[i].elements;) {
      Tile& tile = tiles.emplace_back();
      tile.parameter = i;
      tile.begin = begin;
      tile.by_own_kernel = has_kernel;
      tile.size = std::min(kTileElements, parameters[i].elements - begin);
      tile.owner = owner_of(before, all, backend_.world_size());
      if (!has_kernel) {
        const std::size_t bytes = (1 + kStateTensors) * static_cast<std::size_t>(tile.size) * element;
        undo_bytes = std::max(undo_bytes, round_up(bytes, alignof(StepUndo)));
      }
      before += tile.size;
      begin += tile.size;
    }
  }
  return tiles;
}

// Collective, with values and state of rank 0.
void SharedStepper::Impl::share_parameters() {
  auto fresh = std::make_unique<SharedParameters>(optimizer_);
  std::size_t undo_bytes = 0;
  std::vector<Tile> tiles = make_tiles(*fresh, undo_bytes);
  const torch::Tensor threads = backend_.all_gather(torch::tensor({at::get_num_threads()}, torch::kInt64));
  const int lanes =
      static_cast<int>(std::min<std::int64_t>(threads.max().item<std::int64_t>(), StepRecord::kMostLanes));

  const auto ranks = static_cast<std::size_t>(backend_.world_size());
  const std::size_t squares_offset = StepRecord::bytes(backend_.world_size(), tiles.size());
  const std::size_t places_offset = squares_offset + tiles.size() * sizeof(double);
  const std::size_t undo_offset =
      SharedParameters::view_offset(places_offset + RankGradients::bytes(backend_.world_size(), fresh->size()));
  const std::size_t in_front = undo_offset + ranks * static_cast<std::size_t>(lanes) * undo_bytes;
  const auto block =
      engine_of(group_ ? group_ : default_group(), torch::kCPU)->share_block(fresh->block_bytes(in_front));
  SharedParameters::Written written;
  std::unique_ptr<RankGradients> sources;
  const auto place = [&] {
    fresh->place(block, in_front);
    if (options_.average_gradients)
      sources = std::make_unique<RankGradients>(backend_, *fresh, block->base() + places_offset);
    written = fresh->all();
    return fmt::format("state of {} parameters\n", written.state.size());
  };
  check_same_lines(backend_, place, kNeeds);
  if (backend_.rank() == 0) {
    fresh->put(written);
    use_huge_pages(*block, SharedParameters::view_offset(in_front), *fresh, optimizer_.param_groups());
  }
  if (!meet({0})) std::rethrow_exception(broken_);
  fresh->take(written);

  parameters_ = std::move(fresh);
  for (Tile& tile : tiles) tile.values = (*parameters_)[tile.parameter].flat[0].narrow(0, tile.begin, tile.size);
  tiles_ = std::move(tiles);
  groups_.assign(optimizer_.param_groups().size(), {});
  record_ = std::make_unique<StepRecord>(block->base(), backend_.world_size());
  record_steps_ = 0;
  rank_gradients_ = std::move(sources);
  squares_ = reinterpret_cast<double*>(block->base() + squares_offset);
  undo_offset_ = undo_offset;
  undo_bytes_ = undo_bytes;
  lanes_ = lanes;
}

// What this rank would do now. Changes nothing, except the versions of the groups' options.
SharedStepper::Impl::Facts SharedStepper::Impl::look() {
  Facts facts;
  facts.samples.resize(parameters_->size());
  Fnv1a hash;
  try {
    TORCH_CHECK_VALUE(!c10::InferenceMode::is_enabled(),
                      "SharedStep: step() in inference mode; expected it outside of c10::InferenceMode");
    TORCH_CHECK_VALUE(
        !options_.average_gradients || !join_divides_by_active_ranks(),
        "SharedStep: average_gradients in a join with divide_by_initial_world_size = false: step() takes "
        "the mean over all ranks of the group, also over ranks without inputs. Leave the join's option on, "
        "or average_gradients off");
    facts.new_parameters = !parameters_->are_current();
    const Groups& groups = optimizer_.param_groups();
    if (facts.new_parameters) hash.add_bytes(SharedParameters::lines(groups));
    groups_.resize(std::max(groups_.size(), groups.size()));
    for (std::size_t i = 0; i < groups.size(); ++i) {
      Fnv1a options;
      for (const auto& [name, value] : numbers_of(groups[i].options()))
        options.add_word(std::bit_cast<std::uint64_t>(value));
      if (options.value() != groups_[i].hash) ++groups_[i].version;
      groups_[i].hash = options.value();
      hash.add_word(options.value());
    }
    facts.written = parameters_->written();
    if (!facts.new_parameters) look_at_gradients(facts);
    if (rank_gradients_ && !facts.new_parameters) rank_gradients_->publish(facts.gradients);
  } catch (const std::exception& error) {
    facts.error = plain_text(error);
  }
  for (std::size_t i = 0; i < facts.gradients.size(); ++i) {
    hash.add_word(facts.gradients[i].defined() ? 1 : 0);
    hash.add_word(static_cast<std::uint64_t>(parameters_->steps_now(i)));
  }
  for (const auto* list : {&facts.written.values, &facts.written.state}) {
    for (const std::size_t one : *list) hash.add_word(one);
    hash.add_word(list->size());
  }
  std::uint64_t contents = 0;
  for (const auto& [index, word] : facts.written.contents) contents = mixed(mixed(contents, index), word);
  hash.add_word(contents);
  facts.hash = hash.value();
  return facts;
}

void SharedStepper::Impl::look_at_gradients(Facts& facts) const {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_->size(); ++i) {
    const SharedParameter& one = (*parameters_)[i];
    torch::Tensor& flat = facts.gradients.emplace_back();
    torch::Tensor gradient = one.tensor.grad();
    if (!gradient.defined()) continue;
    TORCH_CHECK_VALUE(gradient.layout() == torch::kStrided, "SharedStep: the gradient of ", one.name(), " is ",
                      gradient.layout(),
                      "; expected a dense one. ZeroRedundancyOptimizer takes sparse gradients where "
                      "the optimizer does");
    TORCH_CHECK_VALUE(gradient.is_cpu() && gradient.scalar_type() == one.dtype && gradient.sizes() == one.sizes,
                      "SharedStep: the gradient of ", one.name(), " is ", gradient.scalar_type(), ' ', gradient.sizes(),
                      " on ", gradient.device(), "; expected ", one.dtype, ' ', torch::IntArrayRef(one.sizes),
                      " on the CPU, as the parameter");
    parameters_->check_can_step(i, optimizer_.param_groups()[one.group].options());
    gradient = gradient.detach().resolve_conj().resolve_neg();
    if (!same_strides(one.sizes, gradient.strides(), one.strides))
      gradient = torch::empty_strided(one.sizes, one.strides, gradient.options()).copy_(gradient);
    flat = gradient.as_strided({one.elements}, {1});
    if (one.elements == 0 || options_.average_gradients) continue;
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(torch::kHalf, torch::kBFloat16, one.dtype, "SharedStep", [&] {
      facts.samples[i] = static_cast<std::int64_t>(hash_of_samples<scalar_t>(flat, steps_));
    });
  }
}

// The same words on every rank where the ranks are about to do the same.
std::vector<std::int64_t> SharedStepper::Impl::row_of(const Facts& facts) const {
  std::vector<std::int64_t> row{static_cast<std::int64_t>(facts.hash), static_cast<std::int64_t>(steps_),
                                facts.new_parameters ? 1 : 0, facts.error.empty() ? 0 : 1};
  row.insert(row.end(), facts.samples.begin(), facts.samples.end());
  return row;
}

// Throws on every rank if some rank cannot take the step, or would take another one.
void SharedStepper::Impl::compare(const Facts& facts, const std::vector<std::vector<std::int64_t>>& rows) {
  const std::size_t begin = rows.front().size() - facts.samples.size();  // of the samples
  const bool same = std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
    return std::equal(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(begin), rows.front().begin());
  });
  if (!same || !facts.error.empty()) {
    check_same_lines(
        backend_, [&] { return lines(facts); }, kNeeds);
    TORCH_CHECK_VALUE(false, "rank ", backend_.rank(), ": ", kNeeds, " on every rank, but they differ");
  }
  std::string first;
  std::size_t parameters = 0;  // whose gradients differ
  for (std::size_t i = 0; i < facts.samples.size(); ++i) {
    std::vector<std::size_t> others;
    for (std::size_t rank = 1; rank < rows.size(); ++rank) {
      if (rows[rank][begin + i] != rows.front()[begin + i]) others.push_back(rank);
    }
    if (others.empty()) continue;
    if (parameters++ > 0) continue;
    first = fmt::format("the gradient of {} on rank(s) {} differs from that of rank 0", (*parameters_)[i].name(),
                        fmt::join(others, ", "));
  }
  TORCH_CHECK_VALUE(parameters == 0, "rank ", backend_.rank(), ": SharedStep: ", first, " (", parameters, " of ",
                    facts.samples.size(),
                    " gradients differ). Every rank needs the same mean, bit for bit: run the last backward pass "
                    "before step() through DistributedDataParallel and outside of no_sync(), and change gradients on "
                    "all ranks alike. With SharedStepOptions::average_gradients step() takes the mean itself");
}

std::string SharedStepper::Impl::lines(const Facts& facts) const {
  TORCH_CHECK_VALUE(facts.error.empty(), facts.error);
  std::string text = fmt::format("step {}\n", steps_ + 1);
  const Groups& groups = optimizer_.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) text += fmt::format("group {}:{}\n", i, text_of(groups[i].options()));
  if (facts.new_parameters) text += SharedParameters::lines(groups);
  for (std::size_t i = 0; i < parameters_->size(); ++i) {
    text += (*parameters_)[i].name() + ':';
    if (!facts.new_parameters) {
      text +=
          fmt::format(" {} gradient, {} steps,", facts.gradients[i].defined() ? "a" : "no", parameters_->steps_now(i));
    }
    const auto written = facts.written.contents.find(i);
    text += written == facts.written.contents.end()
                ? " not written since the last step\n"
                : fmt::format(" written since the last step, contents {:016x}\n", written->second);
  }
  return text;
}

}  // namespace lockstep::nn_detail
