// The autograd graph of one pass of DataParallel.
//
// Each replica has a graph of its own, from its roots (the tensors of its result) to its leaves (its parameters and its
// parts of the inputs). LibTorch runs the backward pass of CPU tensors in the calling thread. So the outer graph has a
// single node for the whole pass: it hands each replica the gradients of its roots, all replicas run backward at once
// in their own threads, and the node puts the gradients of the leaves together. The outer graph then adds them to
// `.grad` as usual, so tensor hooks see one gradient, the sum.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "data_parallel_threads.h"

namespace lockstep::nn_detail {

// How one tensor of the program belongs to one tensor of each replica.
struct Wire {
  torch::Device device;                    // of the program's tensor
  bool split = false;                      // replicas have parts; else each has the whole, and gradients are summed
  bool stacked = false;                    // parts without dimensions
  std::int64_t dim = 0;                    // along which parts are cut
  std::vector<std::int64_t> lengths = {};  // of the parts
};

struct ReplicaGraph {
  std::vector<torch::Tensor> leaves;  // one for each input
  std::vector<torch::Tensor> roots;   // one for each output; undefined where this replica has none
};

struct PassGraph : torch::CustomClassHolder {
  std::shared_ptr<ReplicaThreads> threads;
  std::vector<torch::Tensor> inputs;
  std::vector<Wire> input_wires;
  std::vector<Wire> output_wires;
  std::vector<ReplicaGraph> replicas;
  std::vector<std::size_t> connected;  // the outputs that have a gradient
  bool freed = false;                  // by a backward pass that did not keep it
  bool shared = false;                 // another pass has a part of the replicas' graphs, so they must stay
};

// A replica's part of a tensor, a view, on the tensor's device.
torch::Tensor cut(const torch::Tensor& whole, const Wire& wire, std::size_t replica);

// The outputs: for each root the parts of all replicas put together, on the device of its wire. They are part of the
// caller's autograd graph if inputs require a gradient. Undefined where no replica has a part.
std::vector<torch::Tensor> connect(const c10::intrusive_ptr<PassGraph>& graph);

}  // namespace lockstep::nn_detail
