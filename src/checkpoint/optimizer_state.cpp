#include "optimizer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/checkpoint/errors.h"
#include "number_text.h"

namespace lockstep::checkpoint {
namespace {

namespace optim = torch::optim;

// The options and the per-parameter state of each optimizer. The visitor is called with each field and its name.
template <typename Visitor>
void visit(optim::SGDOptions& options, Visitor& field) {
  field("lr", options.lr());
  field("momentum", options.momentum());
  field("dampening", options.dampening());
  field("weight_decay", options.weight_decay());
  field("nesterov", options.nesterov());
}
template <typename Visitor>
void visit(optim::SGDParamState& state, Visitor& field) {
  field("momentum_buffer", state.momentum_buffer());
}

template <typename Options, typename Visitor>
void visit_adam_options(Options& options, Visitor& field) {
  field("lr", options.lr());
  field("beta1", std::get<0>(options.betas()));
  field("beta2", std::get<1>(options.betas()));
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("amsgrad", options.amsgrad());
}
template <typename State, typename Visitor>
void visit_adam_state(State& state, Visitor& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg());
  field("exp_avg_sq", state.exp_avg_sq());
  field("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <typename Visitor>
void visit(optim::AdamOptions& options, Visitor& field) {
  visit_adam_options(options, field);
}
template <typename Visitor>
void visit(optim::AdamParamState& state, Visitor& field) {
  visit_adam_state(state, field);
}
template <typename Visitor>
void visit(optim::AdamWOptions& options, Visitor& field) {
  visit_adam_options(options, field);
}
template <typename Visitor>
void visit(optim::AdamWParamState& state, Visitor& field) {
  visit_adam_state(state, field);
}

template <typename Visitor>
void visit(optim::RMSpropOptions& options, Visitor& field) {
  field("lr", options.lr());
  field("alpha", options.alpha());
  field("eps", options.eps());
  field("weight_decay", options.weight_decay());
  field("momentum", options.momentum());
  field("centered", options.centered());
}
template <typename Visitor>
void visit(optim::RMSpropParamState& state, Visitor& field) {
  field("step", state.step());
  field("square_avg", state.square_avg());
  field("momentum_buffer", state.momentum_buffer());
  field("grad_avg", state.grad_avg());
}

template <typename Visitor>
void visit(optim::AdagradOptions& options, Visitor& field) {
  field("lr", options.lr());
  field("lr_decay", options.lr_decay());
  field("weight_decay", options.weight_decay());
  field("initial_accumulator_value", options.initial_accumulator_value());
  field("eps", options.eps());
}
template <typename Visitor>
void visit(optim::AdagradParamState& state, Visitor& field) {
  field("step", state.step());
  field("sum", state.sum());
}

template <typename O, typename S>
struct Kind {
  using Options = O;
  using State = S;
  const char* name;
};

// Calls fn(Kind<...>) for the optimizer's kind.
template <typename Fn>
void with_kind(const optim::Optimizer& optimizer, Fn fn) {
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) {
    fn(Kind<optim::SGDOptions, optim::SGDParamState>{"SGD"});
  } else if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) {
    fn(Kind<optim::AdamOptions, optim::AdamParamState>{"Adam"});
  } else if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) {
    fn(Kind<optim::AdamWOptions, optim::AdamWParamState>{"AdamW"});
  } else if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) {
    fn(Kind<optim::RMSpropOptions, optim::RMSpropParamState>{"RMSprop"});
  } else if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) {
    fn(Kind<optim::AdagradOptions, optim::AdagradParamState>{"Adagrad"});
  } else {
    throw CheckpointError(ErrorCode::kUnsupported,
                          "checkpoints hold the state of SGD, Adam, AdamW, RMSprop and Adagrad, not of this optimizer");
  }
}

class FieldWriter {
 public:
  FieldWriter(TensorFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}
  void operator()(const char* name, double value) { file_.metadata[prefix_ + name] = text_of(value); }
  void operator()(const char* name, bool value) { file_.metadata[prefix_ + name] = value ? "1" : "0"; }
  void operator()(const char* name, std::int64_t value) { file_.metadata[prefix_ + name] = text_of(value); }
  void operator()(const char* name, const torch::Tensor& value) {
    if (value.defined()) file_.tensors[prefix_ + name] = value.detach();
  }

 private:
  TensorFile& file_;
  std::string prefix_;
};

// `like`: the parameter whose state is read; undefined for options.
class FieldReader {
 public:
  FieldReader(const TensorFile& file, std::string prefix, torch::Tensor like)
      : file_(file), prefix_(std::move(prefix)), like_(std::move(like)) {}
  void operator()(const char* name, double& value) { value = number<double>(name); }
  void operator()(const char* name, bool& value) { value = number<std::int64_t>(name) != 0; }
  void operator()(const char* name, std::int64_t& value) { value = number<std::int64_t>(name); }
  void operator()(const char* name, torch::Tensor& value) {
    const auto found = file_.tensors.find(prefix_ + name);
    if (found == file_.tensors.end()) return;
    if (found->second.sizes() != like_.sizes()) {
      throw CheckpointError(ErrorCode::kMismatch,
                            fmt::format("{}{} has shape [{}], the parameter [{}]", prefix_, name,
                                        fmt::join(found->second.sizes(), ", "), fmt::join(like_.sizes(), ", ")));
    }
    value = found->second.to(like_.device(), found->second.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }

 private:
  template <typename T>
  T number(const char* name) const {
    const auto found = file_.metadata.find(prefix_ + name);
    const std::optional<T> value = found == file_.metadata.end() ? std::nullopt : number_from_text<T>(found->second);
    if (value) return *value;
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected a number as {}{}, found {}", prefix_, name,
                                                           found == file_.metadata.end() ? "nothing" : found->second));
  }

  const TensorFile& file_;
  std::string prefix_;
  torch::Tensor like_;
};

std::string group_prefix(std::size_t group) {
  return fmt::format("optimizer.group.{}.", group);
}
std::string param_prefix(std::size_t param) {
  return fmt::format("optimizer.param.{}.", param);
}

std::string parameters_of(const optim::Optimizer& optimizer) {
  std::vector<std::size_t> counts;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) counts.push_back(group.params().size());
  return fmt::format("{}", fmt::join(counts, ","));
}

void require_same(const TensorFile& file, const std::string& key, const std::string& now, const char* what) {
  const auto saved = file.metadata.find(key);
  if (saved == file.metadata.end()) throw CheckpointError(ErrorCode::kMismatch, "it holds no optimizer");
  if (saved->second == now) return;
  throw CheckpointError(
      ErrorCode::kMismatch,
      fmt::format("its optimizer has {} {:.100}, the program's has {}: make the same optimizer for the "
                  "same model before restoring",
                  what, saved->second, now));
}

bool has_state(const TensorFile& file, const std::string& prefix) {
  const auto tensor = file.tensors.lower_bound(prefix);
  return tensor != file.tensors.end() && tensor->first.starts_with(prefix);
}

template <typename K>
void add_kind(TensorFile& file, const optim::Optimizer& optimizer, const K& kind) {
  file.metadata["optimizer.type"] = kind.name;
  file.metadata["optimizer.parameters"] = parameters_of(optimizer);
  std::size_t param = 0;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const optim::OptimizerParamGroup& params = optimizer.param_groups()[group];
    FieldWriter options_writer(file, group_prefix(group));
    auto options = static_cast<const typename K::Options&>(params.options());
    visit(options, options_writer);
    for (const torch::Tensor& tensor : params.params()) {
      FieldWriter writer(file, param_prefix(param++));
      const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto state = static_cast<const typename K::State&>(*found->second);
      visit(state, writer);
    }
  }
}

template <typename K>
void restore_kind(const TensorFile& file, optim::Optimizer& optimizer, const K& kind) {
  require_same(file, "optimizer.type", kind.name, "type");
  require_same(file, "optimizer.parameters", parameters_of(optimizer), "parameters by group");
  std::vector<std::unique_ptr<typename K::Options>> options;
  std::vector<std::pair<void*, std::unique_ptr<typename K::State>>> states;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    optim::OptimizerParamGroup& params = optimizer.param_groups()[group];
    FieldReader options_reader(file, group_prefix(group), {});
    options.push_back(std::make_unique<typename K::Options>(static_cast<typename K::Options&>(params.options())));
    visit(*options.back(), options_reader);
    for (const torch::Tensor& tensor : params.params()) {
      const std::string prefix = param_prefix(states.size());
      states.emplace_back(tensor.unsafeGetTensorImpl(), nullptr);
      if (!has_state(file, prefix)) continue;
      FieldReader reader(file, prefix, tensor);
      states.back().second = std::make_unique<typename K::State>();
      visit(*states.back().second, reader);
    }
  }
  // Nothing can fail from here on.
  for (std::size_t group = 0; group < options.size(); ++group) {
    optimizer.param_groups()[group].set_options(std::move(options[group]));
  }
  for (auto& [key, state] : states) {
    if (state) {
      optimizer.state()[key] = std::move(state);
    } else {
      optimizer.state().erase(key);
    }
  }
}

}  // namespace

void add_optimizer(TensorFile& file, const optim::Optimizer& optimizer) {
  with_kind(optimizer, [&](const auto& kind) { add_kind(file, optimizer, kind); });
}

void restore_optimizer(const TensorFile& file, optim::Optimizer& optimizer) {
  with_kind(optimizer, [&](const auto& kind) { restore_kind(file, optimizer, kind); });
}

}  // namespace lockstep::checkpoint
