#include "data_parallel_graph.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace lockstep::nn_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Parts = std::vector<torch::Tensor>;  // of one wire: one for each replica

// Whether only this code uses the memory of `tensor`, so that it may change it.
bool is_ours(const torch::Tensor& tensor) {
  return tensor.layout() == torch::kStrided && tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
         tensor.is_non_overlapping_and_dense();
}

// In the order of replicas, so that every run rounds alike.
torch::Tensor sum(Parts& parts, torch::Device device) {
  torch::Tensor total;
  for (torch::Tensor& part : parts) {
    if (!part.defined()) continue;
    torch::Tensor here = part.to(device);
    part = torch::Tensor();
    if (!total.defined()) {
      total = std::move(here);
    } else if (!total.is_sparse() && is_ours(total) && total.scalar_type() == here.scalar_type()) {
      total.add_(here);
    } else {
      total = total.is_sparse() && !here.is_sparse() ? here.add(total) : total.add(here);
    }
  }
  return total;
}

torch::Tensor concatenate(Parts& parts, const Wire& wire) {
  const auto known = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.defined(); });
  if (known == parts.end()) return {};
  const torch::Tensor& example = *known;
  Parts here;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) {
      std::vector<std::int64_t> sizes = example.sizes().vec();
      if (!wire.stacked) sizes[static_cast<std::size_t>(wire.dim)] = wire.lengths[i];
      parts[i] = torch::zeros(sizes, example.options());
    }
    here.push_back(parts[i].to(wire.device));
  }
  if (wire.stacked) return torch::stack(here);
  return here.size() == 1 ? here.front() : torch::cat(here, wire.dim);
}

torch::Tensor put_together(Parts& parts, const Wire& wire) {
  for (torch::Tensor& part : parts) {
    if (part.defined()) part = part.detach();
  }
  return wire.split ? concatenate(parts, wire) : sum(parts, wire.device);
}

// The wires for each thread, of about equal bytes.
std::vector<std::size_t> shares(const std::vector<Parts>& parts, std::size_t count) {
  std::vector<double> bytes_before{0};
  for (const Parts& wire : parts) {
    double bytes = 0;
    for (const torch::Tensor& part : wire) {
      if (part.defined() && part.layout() == torch::kStrided) bytes += static_cast<double>(part.nbytes());
    }
    bytes_before.push_back(bytes_before.back() + bytes);
  }
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < count; ++i) {
    const double target = bytes_before.back() * static_cast<double>(i) / static_cast<double>(count);
    begins.push_back(static_cast<std::size_t>(std::lower_bound(bytes_before.begin(), bytes_before.end(), target) -
                                              bytes_before.begin()));
  }
  begins.push_back(parts.size());
  begins.front() = 0;
  return begins;
}

// CPU replicas share the work; it is memory traffic, and each core has its own.
std::vector<torch::Tensor> put_all_together(ReplicaThreads& threads, std::vector<Parts>& parts,
                                            const std::vector<Wire>& wires) {
  constexpr double kWorthAThread = 1 << 20;  // bytes
  std::vector<torch::Tensor> result(parts.size());
  const auto range = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) result[i] = put_together(parts[i], wires[i]);
  };
  double bytes = 0;
  for (const Parts& wire : parts) {
    for (const torch::Tensor& part : wire) {
      if (part.defined() && part.layout() == torch::kStrided) bytes += static_cast<double>(part.nbytes());
    }
  }
  if (!threads.place(0).device.is_cpu() || bytes < kWorthAThread) {
    range(0, parts.size());
    return result;
  }
  const std::size_t count = parts.front().size();
  const std::vector<std::size_t> begins = shares(parts, count);
  threads.run(count, [&](std::size_t i) { range(begins[i], begins[i + 1]); });
  return result;
}

// One for each wire: the tensors that `pick` names, of all replicas.
template <typename Pick>
std::vector<Parts> transpose(PassGraph& graph, std::size_t wires, Pick pick) {
  std::vector<Parts> parts(wires);
  for (std::size_t wire = 0; wire < wires; ++wire) {
    for (ReplicaGraph& replica : graph.replicas) parts[wire].push_back(pick(replica, wire));
  }
  return parts;
}

struct PassNode : torch::autograd::Function<PassNode> {
  // `outputs`: those in `graph->connected`, without a graph.
  static variable_list forward(AutogradContext* context, torch::TensorList /*inputs*/,
                               const c10::intrusive_ptr<PassGraph>& graph, const variable_list* outputs) {
    context->set_materialize_grads(false);
    context->saved_data["graph"] = c10::IValue::make_capsule(graph);
    return *outputs;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

// What one backward pass computes: gradients of these leaves from those of these roots.
struct GraphBackward {
  PassGraph& graph;
  std::vector<std::size_t> leaves;
  std::vector<std::size_t> roots;
  variable_list gradients;  // of the roots, of all replicas together
  bool keep_graph;          // of the replicas
  bool create_graph;
  std::vector<Parts> given;  // by replica: its parts of `gradients`
  std::vector<Parts> found;  // by replica: gradients of its leaves

  void run(std::size_t replica);
};

void GraphBackward::run(std::size_t replica) {
  ReplicaGraph& own = graph.replicas[replica];
  variable_list from, by, to;
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const torch::Tensor& root = own.roots[roots[i]];
    if (!root.defined() || !root.requires_grad()) continue;
    torch::Tensor part = cut(gradients[i].detach(), graph.output_wires[roots[i]], replica).to(root.device());
    if (create_graph) part = part.detach().requires_grad_();
    given[replica][i] = part;
    from.push_back(root);
    by.push_back(part);
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!own.leaves[leaves[i]].requires_grad()) continue;
    wanted.push_back(i);
    to.push_back(own.leaves[leaves[i]]);
  }
  if (from.empty() || to.empty()) return;
  variable_list result = torch::autograd::grad(from, to, by, keep_graph, create_graph, /*allow_unused=*/true);
  for (std::size_t i = 0; i < wanted.size(); ++i) found[replica][wanted[i]] = std::move(result[i]);
  if (!keep_graph) own.roots.assign(own.roots.size(), {});  // frees activations
}

// On a GPU, autograd runs this node in its own thread for the output device. The backward pass of the replica on that
// device needs the same thread. So the replica must run here: if another thread ran it, both would wait forever.
std::optional<std::size_t> replica_of_this_thread(const PassGraph& graph, const variable_list& gradients) {
  for (const torch::Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.is_cpu()) continue;
    for (std::size_t i = 0; i < graph.replicas.size(); ++i) {
      if (graph.threads->place(i).device == gradient.device()) return i;
    }
  }
  return std::nullopt;
}

// Makes the gradients differentiable (create_graph). The gradients that were just computed become the roots of a new
// PassGraph. Its leaves are the leaves of this pass and the gradients that this pass was given.
variable_list connect_gradients(const GraphBackward& pass) {
  const PassGraph& before = pass.graph;
  auto graph = c10::make_intrusive<PassGraph>();
  graph->threads = before.threads;
  graph->shared = true;
  graph->inputs = before.inputs;
  graph->input_wires = before.input_wires;
  for (const std::size_t leaf : pass.leaves) graph->output_wires.push_back(before.input_wires[leaf]);
  for (std::size_t i = 0; i < pass.roots.size(); ++i) {
    graph->inputs.push_back(pass.gradients[i]);
    graph->input_wires.push_back(before.output_wires[pass.roots[i]]);
    graph->input_wires.back().device = pass.gradients[i].device();
  }
  for (std::size_t replica = 0; replica < before.replicas.size(); ++replica) {
    ReplicaGraph own{before.replicas[replica].leaves, pass.found[replica]};
    for (const torch::Tensor& part : pass.given[replica]) {
      // A replica that does not use this root still needs a leaf in this place. It gets no gradient.
      own.leaves.push_back(part.defined() ? part : torch::zeros({}, before.inputs.front().options()));
    }
    graph->replicas.push_back(std::move(own));
  }
  return connect(graph);
}

// Tensors of one memory, such as the gradients of a and b in a + b, become the gradients of several leaves: LibTorch
// copies such a tensor only if it is the same object. A later change in place would change both.
void own_memory(variable_list& gradients) {
  for (torch::Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.layout() != torch::kStrided || !gradient.has_storage()) continue;
    if (gradient.storage().use_count() > 1) gradient = gradient.clone();
  }
}

variable_list PassNode::backward(AutogradContext* context, variable_list gradients) {
  const auto graph = c10::static_intrusive_pointer_cast<PassGraph>(context->saved_data["graph"].toCapsule());
  TORCH_CHECK(
      !graph->freed,
      "DataParallel: the graph of this forward pass was freed by an earlier backward pass; add up the losses of "
      "all outputs for one pass, or keep the graph there with retain_graph");
  const bool create_graph = torch::GradMode::is_enabled();
  const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph() || create_graph;
  graph->shared = graph->shared || create_graph;
  GraphBackward pass{*graph, {}, {}, {}, keep_graph || graph->shared, create_graph, {}, {}};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    pass.roots.push_back(graph->connected[i]);
    pass.gradients.push_back(gradients[i]);
  }
  for (std::size_t i = 0; i < graph->inputs.size(); ++i) {
    if (context->needs_input_grad(i)) pass.leaves.push_back(i);
  }
  const std::size_t count = graph->replicas.size();
  pass.given.assign(count, Parts(pass.roots.size()));
  pass.found.assign(count, Parts(pass.leaves.size()));
  graph->freed = !keep_graph;
  graph->threads->run(
      count, [&](std::size_t replica) { pass.run(replica); }, replica_of_this_thread(*graph, gradients));

  variable_list found;
  if (pass.create_graph) {
    found = connect_gradients(pass);
  } else {
    std::vector<Parts> parts(pass.leaves.size());
    std::vector<Wire> wires;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (Parts& replica : pass.found) parts[i].push_back(std::move(replica[i]));
      wires.push_back(graph->input_wires[pass.leaves[i]]);
    }
    found = put_all_together(*graph->threads, parts, wires);
    parts.clear();
    own_memory(found);
  }
  variable_list result(graph->inputs.size() + 2);  // none for the arguments that are no tensors
  for (std::size_t i = 0; i < pass.leaves.size(); ++i) result[pass.leaves[i]] = std::move(found[i]);
  if (graph->freed) {
    graph->inputs.clear();
    graph->replicas.clear();
  }
  return result;
}

}  // namespace

torch::Tensor cut(const torch::Tensor& whole, const Wire& wire, std::size_t replica) {
  if (!wire.split) return whole;
  if (wire.stacked) return whole.select(0, static_cast<std::int64_t>(replica));
  std::int64_t start = 0;
  for (std::size_t before = 0; before < replica; ++before) start += wire.lengths[before];
  return whole.narrow(wire.dim, start, wire.lengths[replica]);
}

std::vector<torch::Tensor> connect(const c10::intrusive_ptr<PassGraph>& graph) {
  std::vector<Parts> parts = transpose(*graph, graph->output_wires.size(),
                                       [](ReplicaGraph& replica, std::size_t i) { return replica.roots[i]; });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool any = std::any_of(parts[i].begin(), parts[i].end(),
                                 [](const auto& part) { return part.defined() && part.requires_grad(); });
    if (any && torch::GradMode::is_enabled()) graph->connected.push_back(i);
  }
  std::vector<torch::Tensor> outputs;
  {
    const torch::NoGradGuard no_grad;
    outputs = put_all_together(*graph->threads, parts, graph->output_wires);
  }
  if (graph->connected.empty()) return outputs;
  variable_list chosen;
  for (const std::size_t i : graph->connected) chosen.push_back(outputs[i]);
  const variable_list inputs = graph->inputs;
  const variable_list with_graph = PassNode::apply(torch::TensorList(inputs), graph, &chosen);
  for (std::size_t i = 0; i < with_graph.size(); ++i) outputs[graph->connected[i]] = with_graph[i];
  return outputs;
}

}  // namespace lockstep::nn_detail
