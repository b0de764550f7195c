// Which options and which state each optimizer has: its fields and their names in a file.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {

namespace optim = torch::optim;

// The options and the per-parameter state of each optimizer. The visitor is called with each field and its name, and
// for a tensor with whether the optimizer needs it under these options.
template <typename Visitor>
void visit(optim::SGDOptions& options, Visitor& field) {
  field("lr", options.lr());
  field("momentum", options.momentum());
  field("dampening", options.dampening());
  field("weight_decay", options.weight_decay());
  field("nesterov", options.nesterov());
}
template <typename Visitor>
void visit(optim::SGDParamState& state, const optim::SGDOptions& options, Visitor& field) {
  field("momentum_buffer", state.momentum_buffer(), true);
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
void visit_adam_state(State& state, bool amsgrad, Visitor& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg(), true);
  field("exp_avg_sq", state.exp_avg_sq(), true);
  field("max_exp_avg_sq", state.max_exp_avg_sq(), amsgrad);
}
template <typename Visitor>
void visit(optim::AdamOptions& options, Visitor& field) {
  visit_adam_options(options, field);
}
template <typename Visitor>
void visit(optim::AdamParamState& state, const optim::AdamOptions& options, Visitor& field) {
  visit_adam_state(state, options.amsgrad(), field);
}
template <typename Visitor>
void visit(optim::AdamWOptions& options, Visitor& field) {
  visit_adam_options(options, field);
}
template <typename Visitor>
void visit(optim::AdamWParamState& state, const optim::AdamWOptions& options, Visitor& field) {
  visit_adam_state(state, options.amsgrad(), field);
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
void visit(optim::RMSpropParamState& state, const optim::RMSpropOptions& options, Visitor& field) {
  field("step", state.step());
  field("square_avg", state.square_avg(), true);
  field("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  field("grad_avg", state.grad_avg(), options.centered());
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
void visit(optim::AdagradParamState& state, const optim::AdagradOptions& options, Visitor& field) {
  field("step", state.step());
  field("sum", state.sum(), true);
}

template <typename T, typename O, typename S>
struct Kind {
  using Optimizer = T;
  using Options = O;
  using State = S;
  // LibTorch's Adagrad makes the state of its parameters in its constructor, and cannot step without it.
  static constexpr bool kStateFromTheStart = std::is_same_v<T, optim::Adagrad>;
  const char* name;
};

// Calls fn(Kind<...>) for the optimizer's kind.
template <typename Fn>
void with_kind(const optim::Optimizer& optimizer, Fn fn) {
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) {
    fn(Kind<optim::SGD, optim::SGDOptions, optim::SGDParamState>{"SGD"});
  } else if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) {
    fn(Kind<optim::Adam, optim::AdamOptions, optim::AdamParamState>{"Adam"});
  } else if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) {
    fn(Kind<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>{"AdamW"});
  } else if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) {
    fn(Kind<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>{"RMSprop"});
  } else if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) {
    fn(Kind<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>{"Adagrad"});
  } else {
    throw CheckpointError(ErrorCode::kUnsupported,
                          "checkpoints hold the state of SGD, Adam, AdamW, RMSprop and Adagrad, not of this optimizer");
  }
}

}  // namespace lockstep::checkpoint
