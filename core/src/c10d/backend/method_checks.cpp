#include "c10d/backend/method_checks.h"

namespace lockstep {
namespace {

constexpr const char* kSameLength = "requires input/output tensor lists to have the same length";

}  // namespace

const at::Tensor& check_reduce(const CallChecks& checks, const std::vector<at::Tensor>& tensors,
                               const c10d::ReduceOptions& opts) {
  checks.check_root(opts.rootRank);
  const at::Tensor& tensor = checks.only(tensors, "tensors");
  checks.check_root_tensor(opts.rootTensor, tensors.size());
  return tensor;
}

const at::Tensor& check_gather(const CallChecks& checks, const std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& opts) {
  checks.check_root(opts.rootRank);
  return checks.only(inputs, "inputs", "requires a single-element input tensor list");
}

const at::Tensor& check_scatter(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                                const c10d::ScatterOptions& opts) {
  checks.check_root(opts.rootRank);
  return checks.only(outputs, "outputs", "requires a single-element output tensor list");
}

const at::Tensor& check_reduce_scatter(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                                       const std::vector<std::vector<at::Tensor>>& inputs) {
  const at::Tensor& output = checks.only(outputs, "outputs", "reduce_scatter only supports 1 output");
  checks.check_count(inputs.size(), 1, "inputs", "requires a single-element input list");
  checks.check_count(inputs.front().size(), checks.group_size(), "inputs",
                     "invalid input tensor list size, must be world size");
  return output;
}

void check_all_gather(const CallChecks& checks, const std::vector<std::vector<at::Tensor>>& outputs,
                      const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) checks.reject("`inputs` is empty: requires non-empty input tensor list");
  checks.check_count(outputs.size(), inputs.size(), "outputs", kSameLength);
  if (inputs.size() > 1) return;
  checks.check_count(outputs.front().size(), checks.group_size(), "outputs", "invalid output tensor list at index 0");
}

std::vector<std::vector<at::Tensor>> check_all_gather_coalesced(const CallChecks& checks,
                                                                const std::vector<std::vector<at::Tensor>>& outputs,
                                                                const std::vector<at::Tensor>& inputs) {
  checks.check_count(outputs.size(), checks.group_size(), "outputs", "output lists should be equal to world size");
  std::vector<std::vector<at::Tensor>> columns(inputs.size());
  for (const std::vector<at::Tensor>& of_rank : outputs) {
    checks.check_count(of_rank.size(), inputs.size(), "outputs[rank]", "invalid output size");
    for (std::size_t i = 0; i < inputs.size(); ++i) columns[i].push_back(of_rank[i]);
  }
  return columns;
}

void check_all_to_all(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& inputs) {
  checks.check_count(inputs.size(), checks.group_size(), "inputs", "input tensor list size does not match world size");
  checks.check_count(outputs.size(), checks.group_size(), "outputs",
                     "output tensor list size does not match world size");
}

void check_coalesced(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& inputs) {
  checks.check_count(inputs.size(), outputs.size(), "inputs", kSameLength);
}

void check_outputs_of_ranks(const CallChecks& checks, const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            int rank) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    checks.check_same_dtype(outputs[i], "outputs", input, "input", i);
  }
  checks.check_elements(outputs[rank], "outputs[this rank]", input.numel(), "those of `input`");
}

void check_inputs_of_ranks(const CallChecks& checks, const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                           int rank) {
  for (std::size_t i = 0; i < inputs.size(); ++i) checks.check_same_dtype(output, "output", inputs[i], "inputs", i);
  checks.check_elements(inputs[rank], "inputs[this rank]", output.numel(), "those of `output`");
}

void check_exchange(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, int rank) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    checks.check_same_dtype(outputs[i], "outputs", inputs[i], "inputs", i);
    checks.check_same_dtype(inputs[i], "inputs", inputs[0], "inputs[0]", i);
  }
  checks.check_elements(outputs[rank], "outputs[this rank]", inputs[rank].numel(), "those of inputs[this rank]");
}

void check_all_gather_into_tensor(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input) {
  checks.check_readable(input, "input");
  checks.check_same_dtype(output, "output", input, "input");
  checks.check_elements(output, "output", input.numel() * checks.group_size(), "world_size times those of `input`");
}

void check_reduce_scatter_tensor(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input) {
  checks.check_readable(input, "input");
  checks.check_same_dtype(output, "output", input, "input");
  checks.check_elements(input, "input", output.numel() * checks.group_size(), "world_size times those of `output`");
}

ExchangeSplits check_all_to_all_single(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input,
                                       const std::vector<std::int64_t>& output_splits,
                                       const std::vector<std::int64_t>& input_splits) {
  checks.check_same_dtype(output, "output", input, "input");
  return {checks.split_elements(input, "input", input_splits), checks.split_elements(output, "output", output_splits)};
}

}  // namespace lockstep
