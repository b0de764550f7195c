#include "fast_convolution.h"

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "by_columns.h"
#include "by_taps.h"
#include "convolution_shape.h"
#include "lockstep/nn/fast_convolution.h"
#include "nn/usual_tensor.h"

namespace lockstep {
namespace nn_detail {
namespace {

using torch::MemoryFormat;
using torch::Tensor;

// With more pixels LibTorch's own way is as fast, and with a smaller kernel it loses little.
constexpr std::int64_t kMostRows = 128;
constexpr std::int64_t kSmallestKernel = std::int64_t{1} << 17;
// With fewer the products for the taps of a kernel are too small.
constexpr std::int64_t kFewestChannels = 64;

bool is_usual_float(const Tensor& tensor, std::int64_t dimensions) {
  return is_usual(tensor) && tensor.layout() == torch::kStrided && tensor.dim() == dimensions &&
         tensor.scalar_type() == torch::kFloat;
}

bool has_two(torch::IntArrayRef values, std::int64_t least) {
  return values.size() == 2 && values[0] >= least && values[1] >= least;
}

bool is_channels_last(const Tensor& tensor) {
  return tensor.suggest_memory_format() == MemoryFormat::ChannelsLast;
}

// A row for each pixel of a result.
Tensor rows_of(const Tensor& result) {
  return result.permute({0, 2, 3, 1}).reshape({-1, result.size(1)});
}

Tensor convolve(const ConvolutionCall& call) {
  const Tensor &input = call.input, &weight = call.weight;
  const ConvolutionShape shape(input, weight, call.stride, call.padding);
  Tensor rows =
      weight.is_contiguous() ? by_columns::convolve(input, weight, shape) : by_taps::convolve(input, weight, shape);
  if (call.bias.defined()) rows += call.bias;
  // The layout of LibTorch's result, in a tensor of its own, because a caller cannot change a view from here in place.
  const MemoryFormat layout =
      is_channels_last(input) || is_channels_last(weight) ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  const std::int64_t height = shape.result_height(), width = shape.result_width();
  return at::empty({shape.samples, shape.results, height, width}, input.options(), layout)
      .copy_(rows.view({shape.samples, height, width, shape.results}).permute({0, 3, 1, 2}));
}

class FastConvolution : public torch::autograd::Function<FastConvolution> {
 public:
  // bias is optional, because autograd asks every tensor argument for its device, undefined ones too.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, torch::IntArrayRef stride, torch::IntArrayRef padding) {
    context->saved_data["wanted"] =
        c10::List<bool>({input.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->save_for_backward({input, weight});
    return convolve({input, weight, bias.value_or(Tensor()), stride, padding, {}, 1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor &grad = grads[0], &input = saved[0], &weight = saved[1];
    const c10::List<bool> wanted = context->saved_data["wanted"].toBoolList();
    const std::vector<std::int64_t> stride = context->saved_data["stride"].toIntVector();
    const std::vector<std::int64_t> padding = context->saved_data["padding"].toIntVector();
    Tensor of_input, of_weight, of_bias;
    if (!grad.defined()) return {of_input, of_weight, of_bias, Tensor(), Tensor()};
    // The gradient of this gradient is LibTorch's.
    if (torch::GradMode::is_enabled() || !is_usual_float(grad, 4)) {
      const std::int64_t biases = weight.size(0);
      std::tie(of_input, of_weight, of_bias) =
          at::convolution_backward(grad, input, weight, torch::IntArrayRef(biases), stride, padding, {1, 1}, false,
                                   {0, 0}, 1, {wanted[0], wanted[1], wanted[2]});
    } else {
      const ConvolutionShape shape(input, weight, stride, padding);
      const Tensor rows = rows_of(grad);
      const bool contiguous = weight.is_contiguous();
      if (wanted[0])
        of_input = (contiguous ? by_columns::input_gradient : by_taps::input_gradient)(rows, weight, shape);
      if (wanted[1])
        of_weight = (contiguous ? by_columns::weight_gradient : by_taps::weight_gradient)(rows, input, shape);
      if (wanted[2]) of_bias = rows.sum(0);
    }
    return {of_input, of_weight, of_bias, Tensor(), Tensor()};
  }
};

Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
              c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, c10::SymInt groups) {
  const auto plain = [](c10::SymIntArrayRef values) { return c10::asIntArrayRefSlowOpt(values); };
  const auto strides = plain(stride), paddings = plain(padding), dilations = plain(dilation);
  if (strides && paddings && dilations && groups.maybe_as_int()) {
    const ConvolutionCall call{input,     weight,     bias.value_or(Tensor()), *strides,
                               *paddings, *dilations, *groups.maybe_as_int()};
    if (suits_fast_convolution(call)) return fast_convolution(call);
  }
  return at::native::conv2d_symint(input, weight, bias, stride, padding, dilation, std::move(groups));
}

void intercept_convolution() {
  // The dispatcher looks at the autograd key first, in inference mode at the device's own key.
  static const std::vector<torch::Library> libraries = [] {
    std::vector<torch::Library> all;
    for (const c10::DispatchKey key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::CPU}) {
      all.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      all.back().impl("conv2d", TORCH_FN(conv2d));
    }
    return all;
  }();
}

}  // namespace

bool suits_fast_convolution(const ConvolutionCall& call) {
  const Tensor &input = call.input, &weight = call.weight, &bias = call.bias;
  if (!is_usual_float(input, 4) || !is_usual_float(weight, 4) || torch::jit::tracer::isTracing()) return false;
  if (bias.defined() && !(is_usual_float(bias, 1) && bias.size(0) == weight.size(0))) return false;
  if (call.groups != 1 || input.size(1) != weight.size(1) || input.numel() == 0) return false;
  if (!has_two(call.stride, 1) || !has_two(call.padding, 0) || !has_two(call.dilation, 1)) return false;
  if (call.dilation[0] != 1 || call.dilation[1] != 1 || weight.numel() < kSmallestKernel) return false;
  const bool taps = !weight.is_contiguous();
  if (taps && (!weight.is_contiguous(MemoryFormat::ChannelsLast) || weight.size(1) < kFewestChannels)) return false;
  const ConvolutionShape shape(input, weight, call.stride, call.padding);
  const bool fits = shape.height + 2 * shape.padding_height >= shape.kernel_height &&
                    shape.width + 2 * shape.padding_width >= shape.kernel_width;
  return fits && shape.rows() <= kMostRows;
}

Tensor fast_convolution(const ConvolutionCall& call) {
  const auto bias = call.bias.defined() ? std::optional<Tensor>(call.bias) : std::nullopt;
  return FastConvolution::apply(call.input, call.weight, bias, call.stride, call.padding);
}

}  // namespace nn_detail

void use_fast_convolution() {
  nn_detail::intercept_convolution();
}

}  // namespace lockstep
