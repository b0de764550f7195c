#include "fast_convolution.h"

#include <torch/library.h>
#include <torch/torch.h>

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
// With fewer, or more taps of the kernel, the products are too small. Channels count where each tap has one.
constexpr std::int64_t kFewestResults = 64;
constexpr std::int64_t kFewestChannels = 64;
constexpr std::int64_t kMostTaps = 25;
constexpr std::int64_t kMostPadding = std::int64_t{1} << 20;

bool is_usual_float(const Tensor& tensor, std::int64_t dimensions) {
  return is_usual(tensor) && tensor.layout() == torch::kStrided && tensor.dim() == dimensions &&
         tensor.scalar_type() == torch::kFloat;
}

bool is_channels_last(const Tensor& tensor) {
  return tensor.suggest_memory_format() == MemoryFormat::ChannelsLast;
}

// That of LibTorch's result and gradients.
MemoryFormat layout_of(const Tensor& input, const Tensor& weight) {
  return is_channels_last(input) || is_channels_last(weight) ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}

// Else by columns.
bool goes_by_taps(const Tensor& weight) {
  return weight.is_contiguous(MemoryFormat::ChannelsLast);
}

// A row for each pixel of a result.
Tensor rows_of(const Tensor& result) {
  return result.permute({0, 2, 3, 1}).reshape({-1, result.size(1)});
}

// The other way round. A tensor of its own, because a caller cannot change a view from here in place.
Tensor pictures_of(const Tensor& rows, std::int64_t samples, std::int64_t height, std::int64_t width,
                   MemoryFormat layout) {
  const std::int64_t channels = rows.size(1);
  return at::empty({samples, channels, height, width}, rows.options(), layout)
      .copy_(rows.view({samples, height, width, channels}).permute({0, 3, 1, 2}));
}

Tensor convolve(const ConvolutionCall& call) {
  const Tensor &input = call.input, &weight = call.weight;
  const ConvolutionShape shape(input, weight, call.stride, call.padding);
  Tensor rows = (goes_by_taps(weight) ? by_taps::convolve : by_columns::convolve)(input, weight, shape);
  if (call.bias.defined()) rows += call.bias;
  return pictures_of(rows, shape.samples, shape.result_height(), shape.result_width(), layout_of(input, weight));
}

Tensor input_gradient(const Tensor& rows, const Tensor& input, const Tensor& weight, const ConvolutionShape& shape) {
  if (!goes_by_taps(weight)) return by_columns::input_gradient(rows, weight, shape);
  return pictures_of(by_taps::input_gradient(rows, weight, shape), shape.samples, shape.height, shape.width,
                     layout_of(input, weight));
}

Tensor weight_gradient(const Tensor& rows, const Tensor& input, const Tensor& weight, const ConvolutionShape& shape) {
  if (!goes_by_taps(weight)) return by_columns::weight_gradient(rows, input, shape);
  return by_taps::weight_gradient(rows, input, shape, layout_of(input, weight));
}

Pair pair_of(const std::vector<std::int64_t>& values) {
  return {values[0], values[1]};
}

class FastConvolution : public torch::autograd::Function<FastConvolution> {
 public:
  // bias is optional, because autograd asks every tensor argument for its device, undefined ones too.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias, Pair stride, Pair padding) {
    context->saved_data["wanted"] =
        c10::List<bool>({input.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()});
    context->saved_data["stride"] = torch::IntArrayRef(stride);
    context->saved_data["padding"] = torch::IntArrayRef(padding);
    context->save_for_backward({input, weight});
    return convolve({input, weight, bias.value_or(Tensor()), stride, padding, {1, 1}, 1});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor &grad = grads[0], &input = saved[0], &weight = saved[1];
    const c10::List<bool> requiring = context->saved_data["wanted"].toBoolList();
    // Those that this pass is asked for.
    const auto wants = [&](std::size_t i) { return requiring[i] && context->needs_input_grad(i); };
    const Pair stride = pair_of(context->saved_data["stride"].toIntVector());
    const Pair padding = pair_of(context->saved_data["padding"].toIntVector());
    Tensor of_input, of_weight, of_bias;
    if (!grad.defined()) return {of_input, of_weight, of_bias, Tensor(), Tensor()};
    // The gradient of this gradient is LibTorch's.
    if (torch::GradMode::is_enabled() || !is_usual_float(grad, 4)) {
      const std::int64_t biases = weight.size(0);
      std::tie(of_input, of_weight, of_bias) =
          at::convolution_backward(grad, input, weight, torch::IntArrayRef(biases), stride, padding, {1, 1}, false,
                                   {0, 0}, 1, {wants(0), wants(1), wants(2)});
    } else {
      const ConvolutionShape shape(input, weight, stride, padding);
      const Tensor rows = rows_of(grad);
      if (wants(0)) of_input = input_gradient(rows, input, weight, shape);
      if (wants(1)) of_weight = weight_gradient(rows, input, weight, shape);
      if (wants(2)) of_bias = rows.sum(0);
    }
    return {of_input, of_weight, of_bias, Tensor(), Tensor()};
  }
};

// One number stands for both, as in LibTorch.
std::optional<Pair> as_pair(c10::SymIntArrayRef values) {
  const auto numbers = c10::asIntArrayRefSlowOpt(values);
  if (!numbers || numbers->empty() || numbers->size() > 2) return std::nullopt;
  return Pair{numbers->front(), numbers->back()};
}

Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
              c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, c10::SymInt groups) {
  const auto strides = as_pair(stride), paddings = as_pair(padding), dilations = as_pair(dilation);
  if (strides && paddings && dilations && groups.maybe_as_int()) {
    const ConvolutionCall call{input,     weight,     bias.value_or(Tensor()), *strides,
                               *paddings, *dilations, *groups.maybe_as_int()};
    if (suits_fast_convolution(call)) return fast_convolution(call);
  }
  return at::native::conv2d_symint(input, weight, bias, stride, padding, dilation, std::move(groups));
}

// In inference mode, and in kernels that have left autograd behind: a Function would make a graph even there.
Tensor conv2d_below_autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                             c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             c10::SymInt groups) {
  const torch::NoGradGuard no_grad;
  return conv2d(input, weight, bias, stride, padding, dilation, std::move(groups));
}

void intercept_convolution() {
  // Never destroyed: other threads may convolve while the program exits.
  [[maybe_unused]] static const auto& libraries = *[] {
    auto* all = new std::vector<torch::Library>;
    all->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
    all->back().impl("conv2d", TORCH_FN(conv2d));
    all->emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    all->back().impl("conv2d", TORCH_FN(conv2d_below_autograd));
    return all;
  }();
}

bool has_usual_tensors(const ConvolutionCall& call) {
  const Tensor &input = call.input, &weight = call.weight, &bias = call.bias;
  if (!is_usual_call() || !is_usual_float(input, 4) || !is_usual_float(weight, 4)) return false;
  if (bias.defined() && !(is_usual_float(bias, 1) && bias.size(0) == weight.size(0))) return false;
  return call.groups == 1 && input.size(1) == weight.size(1) && input.numel() > 0;
}

bool has_usual_numbers(const ConvolutionCall& call) {
  for (const int i : {0, 1}) {
    if (call.dilation[i] != 1 || call.stride[i] < 1) return false;
    if (call.padding[i] < 0 || call.padding[i] > kMostPadding) return false;
  }
  return true;
}

// Whether the kernel can be read as it lies, so that the result has LibTorch's layout too.
bool has_usual_layout(const Tensor& input, const Tensor& weight) {
  if (goes_by_taps(weight)) return weight.size(1) >= kFewestChannels;
  return weight.is_contiguous() && !is_channels_last(input);
}

}  // namespace

ConvolutionShape::ConvolutionShape(const torch::Tensor& input, const torch::Tensor& weight, Pair the_stride,
                                   Pair the_padding)
    : samples(input.size(0)),
      channels(input.size(1)),
      height(input.size(2)),
      width(input.size(3)),
      results(weight.size(0)),
      kernel_height(weight.size(2)),
      kernel_width(weight.size(3)),
      stride(the_stride),
      padding(the_padding) {}

std::vector<std::vector<Meeting>> meetings_of(const ConvolutionShape& shape) {
  std::vector<std::vector<Meeting>> all(shape.taps());
  for (std::int64_t tap = 0; tap < shape.taps(); ++tap) {
    for (std::int64_t result = 0; result < shape.result_pixels(); ++result) {
      const std::int64_t line = result / shape.result_width(), column = result % shape.result_width();
      const std::int64_t y = line * shape.stride[0] - shape.padding[0] + tap / shape.kernel_width;
      const std::int64_t x = column * shape.stride[1] - shape.padding[1] + tap % shape.kernel_width;
      if (y >= 0 && y < shape.height && x >= 0 && x < shape.width) all[tap].push_back({result, y * shape.width + x});
    }
  }
  return all;
}

bool suits_fast_convolution(const ConvolutionCall& call) {
  if (!has_usual_tensors(call) || !has_usual_numbers(call)) return false;
  const Tensor& weight = call.weight;
  if (weight.numel() < kSmallestKernel || weight.size(0) < kFewestResults) return false;
  if (!has_usual_layout(call.input, weight)) return false;
  const ConvolutionShape shape(call.input, weight, call.stride, call.padding);
  const auto within = [](std::int64_t value, std::int64_t most) { return value >= 1 && value <= most; };
  const bool fits = shape.height + 2 * shape.padding[0] >= shape.kernel_height &&
                    shape.width + 2 * shape.padding[1] >= shape.kernel_width;
  // Each number by itself first: their product may be too large for one.
  return fits && within(shape.kernel_height, kMostTaps) && within(shape.kernel_width, kMostTaps) &&
         within(shape.taps(), kMostTaps) && within(shape.samples, kMostRows) &&
         within(shape.result_height(), kMostRows) && within(shape.result_width(), kMostRows) &&
         within(shape.rows(), kMostRows);
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
